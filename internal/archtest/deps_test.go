package archtest

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// atCommit is a requirement without a release: a pseudo-version ends in a time and a commit.
var atCommit = regexp.MustCompile(`(?m)^\s*(?:require )?(\S+) v\S*[.-]\d{14}-[0-9a-f]{12}\b`)

// TestUntaggedDependenciesAreTold: docs/security.md names every dependency of any module that has no tagged release.
func TestUntaggedDependenciesAreTold(t *testing.T) {
	t.Parallel()
	const root = "../.."
	told := read(t, filepath.Join(root, "docs", "security.md"))
	found := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() != "go.mod" && d.Name() != "tools.mod" {
			return err
		}
		for _, m := range atCommit.FindAllStringSubmatch(read(t, path), -1) {
			if found++; !strings.Contains(told, "`"+m[1]+"`") {
				t.Errorf("%s requires %s at a commit: docs/security.md doesn't say so", path, m[1])
			}
		}
		return nil
	})
	if err != nil || found == 0 {
		t.Errorf("%d found, %v", found, err)
	}
}
