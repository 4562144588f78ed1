package backendtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-go/sluice/backend"
	"github.com/sluice-go/sluice/limit"
)

// testPost: the newest announcement stays; of two with the same version, the first.
func testPost(t *testing.T, s *subject) {
	publisher, ok := s.Backend.(backend.Publisher)
	if !ok {
		return
	}
	ctx := context.Background()
	type announcement = backend.Announcement
	n := func(version int64, digest, text string) announcement {
		return announcement{Version: version, Digest: digest, Text: text}
	}
	for i, step := range []struct{ post, want announcement }{
		{n(1, "look", ""), announcement{}}, // there is none, and looking leaves none
		{n(limit.MaxCount, "look", ""), announcement{}},
		{n(5, "first", "five\nlines 9\n"), n(5, "first", "")}, // who left it knows the text
		{n(5, "first", "five\nlines 9\n"), n(5, "first", "")},
		{n(5, "second", "other"), n(5, "first", "")}, // the digest tells that it is another
		{n(5, "look", ""), n(5, "first", "")},
		{n(6, "look", ""), n(5, "first", "")},
		{n(4, "look", ""), n(5, "first", "five\nlines 9\n")}, // newer than what the caller knows
		{n(4, "late", "four"), n(5, "first", "five\nlines 9\n")},
		{n(10, "ten", "\x00 \xff"), n(10, "ten", "")}, // versions are numbers, not words
		{n(9, "nine", "nine"), n(10, "ten", "\x00 \xff")},
		{n(limit.MaxCount, "last", "."), n(limit.MaxCount, "last", "")},
		{n(limit.MaxCount-1, "look", ""), n(limit.MaxCount, "last", ".")},
	} {
		if got, err := publisher.Publish(ctx, step.post); err != nil || got != step.want {
			t.Fatalf("post %d, %+v: %+v, %v; want %+v", i, step.post, got, err, step.want)
		}
		if there, err := publisher.Published(ctx); err != nil || there.Version != step.want.Version || there.Digest != step.want.Digest ||
			(there.Text == "") != (there.Version == 0) || step.want.Text != "" && there.Text != step.want.Text {
			t.Fatalf("a look after post %d: %+v, %v; want %+v", i, there, err, step.want)
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
		t.Errorf("a look without a context: %v", err)
	}
	if _, err := publisher.Published(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("a look with a context that has ended: %v", err)
	}
	if _, err := publisher.Publish(ended, n(1, "d", "t")); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}

// testPostAtOnce: of many at once one wins, and all learn which.
func testPostAtOnce(t *testing.T, s *subject) {
	publisher, ok := s.Backend.(backend.Publisher)
	if !ok {
		return
	}
	for version := int64(1); version <= 20; version++ {
		var all sync.WaitGroup
		digests := make([]string, 16)
		for i := range digests {
			all.Go(func() {
				there, err := publisher.Publish(context.Background(), backend.Announcement{Version: version, Digest: fmt.Sprint("d", i), Text: strings.Repeat("t", i+1)})
				if err != nil || there.Version != version {
					t.Errorf("version %d: %+v, %v", version, there, err)
				}
				digests[i] = there.Digest
			})
		}
		all.Wait()
		if slices.Sort(digests); len(slices.Compact(digests)) != 1 {
			t.Fatalf("version %d: all were told of %q", version, digests)
		}
	}
}
