package backendtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-go/sluice/backend/control"
	"github.com/sluice-go/sluice/limit"
)

// testPublish: the newest announcement stays; of two with the same version, the first.
func testPublish(t *testing.T, s *subject) {
	publisher, ok := s.Backend.(control.Publisher)
	if !ok {
		return
	}
	ctx := context.Background()
	type announcement = control.Announcement
	n := func(version int64, digest, text string) announcement {
		return announcement{Version: version, Digest: digest, Text: text}
	}
	for i, step := range []struct{ publish, want announcement }{
		{n(5, "first", "five\nlines 9\n"), n(5, "first", "")}, // who left it knows the text
		{n(5, "first", "five\nlines 9\n"), n(5, "first", "")},
		{n(5, "second", "other"), n(5, "first", "")}, // the digest tells that it is another
		{n(4, "late", "four"), n(5, "first", "five\nlines 9\n")},
		{n(10, "ten", "\x00 \xff"), n(10, "ten", "")}, // versions are numbers, not words
		{n(9, "nine", "nine"), n(10, "ten", "\x00 \xff")},
		{n(limit.MaxCount, "last", "."), n(limit.MaxCount, "last", "")},
	} {
		if got, err := publisher.Publish(ctx, step.publish); err != nil || got != step.want {
			t.Fatalf("publish %d, %+v: %+v, %v; want %+v", i, step.publish, got, err, step.want)
		}
		if there, err := publisher.Published(ctx); err != nil || there.Version != step.want.Version || there.Digest != step.want.Digest ||
			(there.Text == "") != (there.Version == 0) || step.want.Text != "" && there.Text != step.want.Text {
			t.Fatalf("Published after %d: %+v, %v; want %+v", i, there, err, step.want)
		}
	}

	var none context.Context
	ended, cancel := context.WithCancel(ctx)
	cancel()
	bad := []struct {
		ctx          context.Context
		announcement announcement
	}{{none, n(1, "d", "t")}}
	for _, version := range []int64{0, -1, -1 << 63, limit.MaxCount + 1, 1<<63 - 1} {
		bad = append(bad, struct {
			ctx          context.Context
			announcement announcement
		}{ctx, n(version, "d", "t")})
	}
	bad = append(bad, struct {
		ctx          context.Context
		announcement announcement
	}{ctx, n(1, "d", "")})
	for _, digest := range []string{"", " ", "a b", " a", "a ", "a\n", "a\tb", "a\r", "\v", "\f"} {
		bad = append(bad, struct {
			ctx          context.Context
			announcement announcement
		}{ctx, n(1, digest, "t")})
	}
	for _, b := range bad {
		var typed *limit.Error
		if got, err := publisher.Publish(b.ctx, b.announcement); !errors.As(err, &typed) || typed.Field == "" || got != (announcement{}) {
			t.Errorf("%+v: %+v, %v; want a *limit.Error", b.announcement, got, err)
		}
	}
	var typed *limit.Error
	if _, err := publisher.Published(none); !errors.As(err, &typed) {
		t.Errorf("Published without a context: %v", err)
	}
	if _, err := publisher.Published(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Published with a context that has ended: %v", err)
	}
	if _, err := publisher.Publish(ended, n(1, "d", "t")); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}

// testPublishAtOnce: of many at once one wins, and all learn which.
func testPublishAtOnce(t *testing.T, s *subject) {
	publisher, ok := s.Backend.(control.Publisher)
	if !ok {
		return
	}
	for version := int64(1); version <= 20; version++ {
		var all sync.WaitGroup
		digests := make([]string, 16)
		for i := range digests {
			all.Go(func() {
				there, err := publisher.Publish(context.Background(), control.Announcement{Version: version, Digest: fmt.Sprint("d", i), Text: strings.Repeat("t", i+1)})
				if err != nil || there.Version != version {
					t.Errorf("version %d: %+v, %v", version, there, err)
				}
				digests[i] = there.Digest
			})
		}
		all.Wait()
		if slices.Sort(digests); len(slices.Compact(digests)) != 1 {
			t.Fatalf("version %d: all got %q", version, digests)
		}
	}
}
