package redisbackend

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/backend/control"

	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/limit/state"
)

// FuzzParseAnnouncement: what is read as an announcement is one that could be published, and reads as it was written.
func FuzzParseAnnouncement(f *testing.F) {
	for _, reply := range []string{
		"5 d0", "5 d0\n{}", "5 d0\n", "5 d0\ntwo\nlines", "9007199254740991 d\nx", "9007199254740992 d", "99999999999999999999 d",
		"", "5", "5 ", " d", "5  d", "5 a b", "5 a\tb", "0 d", "-5 d", "+5 d", "05 d", "0x5 d", "5_0 d", "\n", "x",
	} {
		f.Add(reply)
	}
	f.Fuzz(func(t *testing.T, reply string) {
		n, err := parseAnnouncement(reply)
		if err != nil {
			if !errors.Is(err, state.ErrCorruptState) || n != (control.Announcement{}) {
				t.Errorf("%q: %+v, %v", reply, n, err)
			}
			return
		}
		whole := n
		whole.Text += "."
		if err := whole.Validate(); err != nil {
			t.Errorf("%q: %v", reply, err)
		}
		written := fmt.Sprintf("%d %s", n.Version, n.Digest)
		if retry, err := parseAnnouncement(written + "\n" + n.Text); err != nil || retry != n {
			t.Errorf("%q reads as %+v, and that as %+v, %v", reply, n, retry, err)
		}
		if _, rest, _ := strings.Cut(reply, " "); !strings.HasPrefix(rest, n.Digest) || !strings.HasSuffix(reply, n.Text) {
			t.Errorf("%q reads as %+v", reply, n)
		}
	})
}

func TestParseAnnouncement(t *testing.T) {
	for reply, want := range map[string]control.Announcement{
		"5 d0": {Version: 5, Digest: "d0", Text: ""}, "5 d0\n{}\n": {Version: 5, Digest: "d0", Text: "{}\n"}, "9007199254740991 d": {Version: limit.MaxCount, Digest: "d", Text: ""},
		"9007199254740992 d": {}, "0 d": {}, "-5 d": {}, "5": {}, "5 \nx": {}, "5 a b\nx": {}, "": {},
	} {
		if n, err := parseAnnouncement(reply); n != want || (err == nil) != (want.Version > 0) {
			t.Errorf("%q: %+v, %v", reply, n, err)
		}
	}
}
