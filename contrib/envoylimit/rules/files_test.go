package rules_test

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/contrib/envoylimit/rules"
)

const web, api = "domain: web\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]\n",
	"domain: api\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 2}}]\n"

// write replaces a file in one step: a reader never sees a part.
func write(t testing.TB, path, text string) {
	t.Helper()
	next := filepath.Join(filepath.Dir(path), ".next")
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

// A folder is followed in whatever way its files change; a broken one refuses all, with its line, and the rest stays.
func TestFiles(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	one, two, current := filepath.Join(root, "one"), filepath.Join(root, "two"), filepath.Join(root, "current")
	for _, dir := range []string{one, two, filepath.Join(one, "folder.yaml")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(one, "web.yaml"), web)
	write(t, filepath.Join(one, ".api.yaml"), "broken")
	write(t, filepath.Join(one, "README"), "broken")
	write(t, filepath.Join(two, "web.yaml"), web)
	write(t, filepath.Join(two, "api.yml"), api)
	if err := os.Symlink(one, current); err != nil {
		t.Fatal(err)
	}
	sets, errs := make(chan *rules.Set, 10), make(chan error, 10)
	files, err := rules.Open(current, rules.FilesConfig{
		Refresh: time.Millisecond, OnReload: func(err error) { errs <- err }, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	if got := files.Set().String(); got != "web.a: 1/24h@aligned, 1 per day\n" {
		t.Errorf("%q", got)
	}
	refuse := errors.New("refused by the service")
	files.Follow(func(s *rules.Set) error {
		if s.Domain("refuse") != nil {
			return refuse
		}
		sets <- s
		return nil
	})
	next := func(want string) {
		t.Helper()
		select {
		case set := <-sets:
			if got := set.String(); got != want {
				t.Errorf("%q; want %q", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("no reload")
		}
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	// Another link, as Kubernetes replaces a ConfigMap and the reference its runtime.
	if err := os.Symlink(two, current+".next"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(current+".next", current); err != nil {
		t.Fatal(err)
	}
	next("api.a: 2/24h@aligned, 2 per day\nweb.a: 1/24h@aligned, 1 per day\n")

	write(t, filepath.Join(two, "more.yaml"), "domain: more\ndescriptors:\n  - kye: a\n")
	if err := <-errs; err == nil || !strings.Contains(err.Error(), "current/more.yaml:3: the descriptor has no member \"kye\"") {
		t.Errorf("%v", err)
	}
	write(t, filepath.Join(two, "more.yaml"), "domain: refuse\n")
	if err := <-errs; !errors.Is(err, refuse) {
		t.Errorf("%v", err)
	}
	if err := os.Remove(filepath.Join(two, "more.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := <-errs; err != nil { // what is in force is what is there again
		t.Error(err)
	}
	write(t, filepath.Join(two, "web.yaml"), strings.Replace(web, "unit: 1", "unit: 3", 1))
	next("api.a: 2/24h@aligned, 2 per day\nweb.a: 3/24h@aligned, 3 per day\n")
	if err := os.Remove(current); err != nil {
		t.Fatal(err)
	}
	if err := <-errs; !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	select {
	case set := <-sets:
		t.Errorf("a missing folder is in force: %q", set)
	default:
	}
}

// A file half written is never in force; a whole one is within Refresh.
func TestHalfWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "web.yaml")
	write(t, file, web)
	synctest.Test(t, func(t *testing.T) {
		files, err := rules.Open(dir, rules.FilesConfig{Refresh: time.Second, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer files.Close()
		var got []string
		files.Follow(func(s *rules.Set) error { got = append(got, s.String()); return nil })
		time.Sleep(400 * time.Millisecond) // before a read
		write(t, file, "domain: web\n")
		time.Sleep(200 * time.Millisecond)
		write(t, file, web)
		time.Sleep(300 * time.Millisecond)
		write(t, file, "domain: api\n")
		time.Sleep(200 * time.Millisecond)
		write(t, file, strings.Replace(web, "unit: 1", "unit: 2", 1))
		time.Sleep(time.Second)
		synctest.Wait()
		if len(got) != 1 || got[0] != "web.a: 2/24h@aligned, 2 per day\n" {
			t.Errorf("%q", got)
		}
	})
}

func TestOpenFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := rules.Open(dir+"/none", rules.FilesConfig{}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	write(t, dir+"/a.yaml", "domain: ''\n")
	if _, err := rules.Open(dir, rules.FilesConfig{}); err == nil || err.Error() != dir+"/a.yaml:1: the domain must not be empty" {
		t.Error(err)
	}
}

// The example for Kubernetes is read as it is.
func TestKubernetesExample(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, limits, _ := strings.Cut(string(text), "  web.yaml: |\n")
	limits, _, ok := strings.Cut(limits, "---\n")
	set, err := parseFiles(rules.Config{}, strings.ReplaceAll("\n"+limits, "\n    ", "\n"))
	if !ok || err != nil || set.String() != "web.path_/login: 20/1s@aligned, 20 per second\nweb.remote_address: 100/1m~1s, 100 per minute\n" {
		t.Errorf("%v, %s", err, set)
	}
}
