package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearcall/nearcall/interop"
)

// TestFaultsAreThere checks that the table still matches the code, because
// `go run ./mutate` takes minutes and does not run every time.
func TestFaultsAreThere(t *testing.T) {
	names := make(map[string]bool)
	for _, f := range Faults {
		if names[f.Name] {
			t.Errorf("two faults are called %q", f.Name)
		}
		names[f.Name] = true
		if before, after, err := f.apply("../.."); err != nil {
			t.Errorf("%s: %v", f.Name, err)
		} else if before == after {
			t.Errorf("%s: nothing changes", f.Name)
		}
		if (len(f.Items) == 0) == (f.Test == "") {
			t.Errorf("%s: it must have items or a test", f.Name)
		}
		if f.Test != "" && !isTest(t, &f) {
			t.Errorf("%s: there is no test %s in %s", f.Name, f.Test, f.env())
		}
		for _, i := range f.Items {
			if i < 1 || i > len(interop.Items) || interop.Items[i-1].Number != i {
				t.Errorf("%s: there is no item %d", f.Name, i)
			}
		}
	}
}

// isTest reports whether f's test is in its package. It does not look for subtests.
func isTest(t *testing.T, f *Fault) bool {
	name, _, _ := strings.Cut(f.Test, "/")
	files, err := filepath.Glob(filepath.Join("../..", filepath.FromSlash(f.env()), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "\nfunc "+name+"(t *testing.T) {") {
			return true
		}
	}
	return false
}

func TestFaultThatIsNotThereOnce(t *testing.T) {
	for _, old := range []string{"no such text", "return"} {
		f := Fault{File: aStatus, Old: old}
		if _, _, err := f.apply("../.."); err == nil {
			t.Errorf("%q: no error", old)
		}
	}
	f := Fault{File: "internal/call/nothing.go", Old: "x"}
	if _, _, err := f.apply("../.."); err == nil {
		t.Error("a file that is not there: no error")
	}
}

// The copy contains all files that the cases are built from.
func TestNothingIsMissingFromTheCopy(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	list, err := command(t.Context(), "..", "go", "list", "-deps", "-test",
		"-f", `{{if not (or .Standard (eq .Name "main"))}}{{range .GoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}{{range .SFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}{{end}}`, ".")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for file := range strings.Lines(list) {
		name, err := filepath.Rel(root, strings.TrimSpace(file))
		if err != nil || strings.HasPrefix(name, "..") { // of another module
			continue
		}
		found++
		if name = filepath.ToSlash(name); !isCopied(name) {
			t.Errorf("%s is missing", name)
		}
	}
	if found < 50 {
		t.Errorf("there are only %d files", found)
	}
}
