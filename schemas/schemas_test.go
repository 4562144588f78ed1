package schemas_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-go/sluice/router"
	"github.com/sluice-go/sluice/schemas"
	"github.com/sluice-go/sluice/throttler/registry"
)

// The readers accept the valid documents in testdata, and refuse the invalid ones and those beyond what a schema can tell. The
// tests of throttlectl hold the schemas to the same documents.
func TestReadersAgree(t *testing.T) {
	t.Parallel()
	read := map[string]func(path string) error{
		"policies": func(path string) error {
			r, err := registry.Open(path, registry.Config{Refresh: -1})
			if err == nil {
				err = r.Close()
			}
			return err
		},
		"topology": func(path string) error {
			_, err := router.LoadTopology(path)
			return err
		},
	}
	for kind, read := range read {
		for class, valid := range map[string]bool{"valid": true, "invalid": false, "beyond": false} {
			paths, err := filepath.Glob(filepath.Join("testdata", kind, class, "*"))
			if err != nil || len(paths) < 4 {
				t.Errorf("%d documents of %s, %s: %v", len(paths), class, kind, err)
			}
			for _, path := range paths {
				if err := read(path); (err == nil) != valid {
					t.Errorf("%s: %v", path, err)
				}
			}
		}
	}
}

func TestSchemasAreTheFiles(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"policies": schemas.Policies(), "topology": schemas.Topology()} {
		file, err := os.ReadFile(name + ".schema.json")
		if err != nil || string(file) != text || !json.Valid(file) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
