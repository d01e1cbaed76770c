package house

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of packages in docs/design.md anew")

// TestTheDesignKnowsAllPackages compares the table of packages in docs/design.md with
// the code: each package, its synopsis, and its imports.
func TestTheDesignKnowsAllPackages(t *testing.T) {
	const (
		file  = "../../../docs/design.md"
		begin = "<!-- packages -->\n"
		end   = "<!-- end of packages -->\n"
	)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table, between %q and %q", file, begin, end)
	}
	want := before + begin + packageTable(t) + end + after
	if want == string(b) {
		return
	}
	if !*update {
		t.Fatalf("%s does not say which packages there are: go test ./internal/testing/house -update", file)
	}
	if err := os.WriteFile(file, []byte(want), 0o666); err != nil {
		t.Fatal(err)
	}
}

// packageTable returns the table in Markdown, without the examples.
func packageTable(t *testing.T) string {
	t.Setenv("GOOS", "linux") // Linux has all packages; the test may run elsewhere
	var table strings.Builder
	table.WriteString("| package | | imports |\n|---|---|---|\n")
	dec := json.NewDecoder(strings.NewReader(goCmd(t, "list", "-e", "-json=ImportPath,Doc,Imports", "./...")))
	for {
		var pkg struct {
			ImportPath, Doc string
			Imports         []string
		}
		err := dec.Decode(&pkg)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		name := nameOf(pkg.ImportPath)
		if strings.HasPrefix(name, "examples") || strings.HasPrefix(name, "internal/codec/") {
			continue
		}
		if pkg.Doc == "" {
			t.Errorf("package %s does not say what it is", name)
		}
		var imports []string
		for _, imported := range pkg.Imports {
			if strings.HasPrefix(imported+"/", Module+"/") {
				imports = append(imports, "`"+nameOf(imported)+"`")
			}
		}
		what := strings.TrimPrefix(pkg.Doc, "Package "+name[strings.LastIndexByte(name, '/')+1:]+" ")
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", name, strings.TrimSuffix(what, "."), strings.Join(imports, ", "))
	}
	return table.String()
}

// nameOf returns a package's name within the module.
func nameOf(path string) string {
	if name, _ := local(path); name != "." {
		return name
	}
	return "nearcall"
}
