package registry_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/internal/throttlertesting"
	"github.com/sluice-go/sluice/limit"
	"github.com/sluice-go/sluice/throttler/registry"
)

// A registry that follows a file, and tells what is in force.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "policies.json")
	document := `{"version": "7", "policies": {"free": ["60/1m"]}, "default": "free"}`
	if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
		log.Fatal(err)
	}

	policies, err := registry.Open(path, registry.Config{
		OnReload: func(now registry.Info, err error) { log.Println("policies:", now.Version, err) },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer policies.Close()
	fmt.Println(policies.Info().Version, policies.Policy("free").Limits)
	// Output:
	// 7 [60/1m]
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOpenFollowsTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "policies.json")
	good, better := tiers(""), tiers(`, "version": "better"`)
	write(t, path, good)
	synctest.Test(t, func(t *testing.T) {
		type reload struct {
			now registry.Info
			err error
		}
		var mu sync.Mutex // guards reloads
		var reloads []reload
		var book throttlertesting.LogBook
		r, err := registry.Open(path, registry.Config{
			Refresh: 10 * time.Second, Logger: book.Logger(),
			OnReload: func(now registry.Info, err error) {
				mu.Lock()
				defer mu.Unlock()
				reloads = append(reloads, reload{now, err})
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		time.Sleep(5 * time.Second) // so that nothing happens at the moments of a look
		for i, step := range []struct {
			name, text string // no text: the file is removed
			inForce    string
			tells      int  // so many times so far
			refused    bool // and whether there is a problem
		}{
			{"as it was", good, good, 0, false},
			{"changed", better, better, 1, false},
			{"half-written", better[:40], better, 2, true},
			{"still half-written", better[:40], better, 2, true},
			{"gone", "", better, 3, true},
			{"back, and as before", better[:40], better, 4, true},
			{"mended", better, better, 5, false},
			{"gone again", "", better, 6, true},
			{"back, and good", better, better, 7, false},
			{"another", good, good, 8, false},
		} {
			if step.text == "" {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			} else {
				write(t, path, step.text)
			}
			time.Sleep(20 * time.Second) // it is looked at twice
			synctest.Wait()
			sum := sha256.Sum256([]byte(step.inForce))
			now := r.Info()
			if now.Digest != hex.EncodeToString(sum[:]) || (now.Refused != "") != step.refused {
				t.Errorf("step %d, %s: %+v", i, step.name, now)
			}
			mu.Lock()
			reloads := slices.Clone(reloads)
			mu.Unlock()
			if len(reloads) != step.tells {
				t.Fatalf("step %d, %s: reported %d times, want %d: %v", i, step.name, len(reloads), step.tells, reloads)
			}
			if n := len(reloads); n > 0 && ((reloads[n-1].err != nil) != step.refused || reloads[n-1].now != now) {
				t.Errorf("step %d, %s: reported %+v", i, step.name, reloads[n-1])
			}
		}
		if n := book.Levels(); n[slog.LevelWarn] != 4 || n[slog.LevelInfo] != 4 {
			t.Errorf("logged %v: %s", n, book.Text())
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		write(t, path, better)
		time.Sleep(time.Minute)
		if now := r.Info(); now.Version != "" || policyOf(r, "k").Name != "free" {
			t.Errorf("closed, and yet %+v", now)
		}
	})
}

func TestOpenFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "policies.json")
	if _, err := registry.Open(path, registry.Config{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := registry.Open(dir, registry.Config{}); !slices.Equal(fields(err), []string{"file"}) {
		t.Errorf("a folder: %v", err)
	}
	write(t, path, strings.Repeat(" ", 4<<20)+"{}")
	if _, err := registry.Open(path, registry.Config{}); !slices.Equal(fields(err), []string{"size"}) {
		t.Errorf("too large: %v", err)
	}
	write(t, path, "{}")
	if _, err := registry.Open(path, registry.Config{}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("bad: %v, want its name", err)
	}
	write(t, path, tiers(""))
	r, err := registry.Open(path, registry.Config{
		Refresh: -1, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// All that is wrong is reported at once, by line; a key is not.
func TestRefusesTheWhole(t *testing.T) {
	t.Parallel()
	const key = "secret@example.com"
	for _, test := range []struct {
		name, document string
		want           []string
	}{
		{"nothing", ``, []string{"line 1: document"}},
		{"no object", `[]`, []string{"line 1: document", "line 1: default"}},
		{"more than one", `{} {}`, []string{"line 1: document"}},
		{"cut off", "{\n\"policies\": {\n", []string{"line 3: document"}},
		{"empty", `{}`, []string{"line 1: default"}},
		{"in upper case", tiers(`, "Keys": {}`), []string{"line 1: member"}},
		{"twice", tiers(`, "keys": {}, "keys": {}`), []string{"line 1: document"}},
		{"a key twice", tiers(`, "keys": {"` + key + `": "pro", "` + key + `": "free"}`), []string{"line 1: keys"}},
		{"of other bytes", tiers(", \"deny\": [\"\uFFFD\",\n\"k\xff\"]"), []string{"line 2: document"}},
		{"null", tiers(`, "keys": null, "allow": null, "version": null`),
			[]string{"line 1: keys", "line 1: allow", "line 1: version"}},
		{"all at once", `{
			"policies": {
				"free": ["10/1s", "nonsense", "0/1s", "` + key + `"],
				"Pro": ["1/1s"],
				"none": [],
				"same": ["1/1s", "2/1s"],
				"number": [1],
				"` + key + `": ["1/1s"]
			},
			"default": 7,
			"` + key + `": "free",
			"keys": {"` + key + `": "gold",
				"": "free",
				"a": {},
				"b": "of ` + key + `",
				"*": "free"},
			"prefixes": {"p:": "free"},

			"allow": ["", "` + key + `", 5],
			"deny": "` + key + `"
		}`, []string{
			`line 3: policy "free": limit 2: text`, `line 3: policy "free": limit 3: max`, `line 3: policy "free": limit 4: text`,
			"line 4: policy name", `line 5: policy "none": limits`, `line 6: policy "same": limit 2: window`,
			"line 7: policies: entry 1", "line 8: policy name", "line 10: default", "line 11: member",
			"line 13: keys", "line 14: keys", "line 16: keys", "line 17: member",
			"line 19: allow: entry 1", "line 19: allow: entry 3", "line 20: deny",
			"line 12: keys", "line 15: keys",
		}},
	} {
		_, err := registry.New([]byte(test.document), registry.Config{})
		if err == nil {
			t.Errorf("%s: no error", test.name)
			continue
		}
		if got := fields(err); !slices.Equal(got, test.want) {
			t.Errorf("%s: fields %q\nwant %q\n%v", test.name, got, test.want, err)
		}
		if strings.Contains(err.Error(), key) {
			t.Errorf("%s: tells a key: %v", test.name, err)
		}
		if bad := (*limit.Error)(nil); !errors.As(err, &bad) || bad.Value == "" || bad.Bound == "" {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	many := tiers(`, "keys": {` + strings.Repeat(`"k": 1, `, 1000) + `"k": 1}`)
	_, err := registry.New([]byte(many), registry.Config{})
	if lines := strings.Count(err.Error(), "\n") + 1; lines != 101 || !strings.Contains(err.Error(), "901 more") {
		t.Errorf("%d lines: %v", lines, err)
	}
}

// What is wrong with a limit is shown if it looks like one. What doesn't may be a key.
func TestShowsLimitsAlone(t *testing.T) {
	t.Parallel()
	for text, shown := range map[string]bool{
		"10/1x": true, "daily=10/1h~": true, "10/": true, "5/1 s": true, "5 / 1s": true, "-5/1s": true, "1,000/1m": true,
		"1.5/1s": true, "5 per second": true, "Daily=5/1h": true, "10.0.0.0/8": false, "2001:db8::/32": false, "10.0.0.1": false, "7@example.com": false,
		"user=alice@example.com": false, "user=7": false, "4111-1111/x y": false,
	} {
		_, err := registry.New([]byte(`{"policies": {"free": ["`+text+`"]}, "default": "free"}`), registry.Config{})
		if err == nil || strings.Contains(err.Error(), text) != shown {
			t.Errorf("%s: %v, want it shown: %v", text, err, shown)
		}
	}
}

// A mistyped member or name is shown as it was written, with what it may have been meant for. Anything else may be a key.
func TestNamesWhatWasMistyped(t *testing.T) {
	t.Parallel()
	for member, want := range map[string]string{
		`"denny": ["k"]`:             `line 1: member = "denny": must be version, policies, default, keys, allow, deny or shadow: is it deny?`,
		`"Keys": {}`:                 `member = "Keys": must be version, policies, default, keys, allow, deny or shadow: is it keys?`,
		`"allowed": []`:              `member = "allowed": must be version, policies, default, keys, allow, deny or shadow: is it allow?`,
		`"alice": "free"`:            `member = unknown: must be version`,
		`"tenant:7": "pro"`:          `member = unknown: must be version`,
		`"keys": {"k": "Gold Plan"}`: `keys = "Gold Plan": must be the name of a policy`,
	} {
		_, err := registry.New([]byte(tiers(", "+member)), registry.Config{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", member, err, want)
		}
	}
	_, err := registry.New([]byte("{\"policies\": {\"free\": [\n\"5/1 s\"]},\n\"default\": \"free\"}"), registry.Config{})
	if want := `line 1: policy "free": limit 1: text = "5/1 s": the part after / must be a duration, such as 90s or 1h30m`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
