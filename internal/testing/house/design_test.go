package house

import (
	"strings"
	"testing"
)

// TestEachPackageSaysWhatItIs looks for packages without a comment. Examples need none.
func TestEachPackageSaysWhatItIs(t *testing.T) {
	t.Setenv("GOOS", "linux") // Linux has all packages; the test may run elsewhere
	for _, m := range modules {
		for line := range strings.Lines(goCmd(t, "-C", m, "list", "-e", "-f", "{{.ImportPath}}\t{{.Doc}}", "./...")) {
			if path, doc, _ := strings.Cut(line, "\t"); strings.TrimSpace(doc) == "" && !strings.Contains(path, "/examples/") {
				t.Errorf("package %s does not say what it is", path)
			}
		}
	}
}
