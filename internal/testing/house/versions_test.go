package house

import (
	"encoding/json"
	"io/fs"
	"path/filepath"
	"testing"
)

// TestModulesAgreeOnVersions checks that all modules require the same versions of what the core module
// requires. If one of them differs, grpc-go and nearcall are compiled again for its module alone, with and
// without the race detector.
func TestModulesAgreeOnVersions(t *testing.T) {
	const root = "../../.."
	core, n := requirements(t, "."), 0
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == "tools" || d.Name() == "bin"):
			return filepath.SkipDir
		case d.Name() != "go.mod" || file == filepath.Join(root, "go.mod"):
			return nil
		}
		n++
		dir, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		for path, version := range requirements(t, dir) {
			if want, ok := core[path]; ok && version != want {
				t.Errorf("%s requires %s %s, and the core module %s: `go get` the newer one in all modules", dir, path, version, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(core) < 3 || n < 8 {
		t.Errorf("the core module requires %d modules, and there are %d others: the test sees too few", len(core), n)
	}
}

// requirements returns the versions that the module in a folder requires, by path.
func requirements(t *testing.T, dir string) map[string]string {
	t.Helper()
	var mod struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal([]byte(goCmd(t, "-C", dir, "mod", "edit", "-json")), &mod); err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, r := range mod.Require {
		versions[r.Path] = r.Version
	}
	return versions
}
