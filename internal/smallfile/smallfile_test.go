package smallfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-go/sluice/internal/smallfile"
)

type refusal struct{ field, value, bound string }

func (r refusal) Error() string { return r.field + " = " + r.value + ": " + r.bound }

func TestRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, []byte("four"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path string
		most int64
		want error
	}{
		{path, 4, nil},
		{path, 5, nil},
		{path, 3, refusal{"size", "more", "must be at most 3 bytes"}},
		{dir, 4, refusal{"file", "d---------", "must be a regular file"}},
		{path + ".gone", 4, fs.ErrNotExist},
	} {
		data, err := smallfile.Read(tt.path, tt.most, func(field, value, bound string) error { return refusal{field, value, bound} })
		named, ok := errors.AsType[*fs.PathError](err)
		switch {
		case tt.want == nil && (err != nil || string(data) != "four"):
			t.Errorf("%d bytes of %s: %q, %v", tt.most, tt.path, data, err)
		case tt.want != nil && (!errors.Is(err, tt.want) || data != nil || !ok || named.Path != tt.path):
			t.Errorf("%d bytes of %s: %q, %v; want %v", tt.most, tt.path, data, err, tt.want)
		}
	}
}
