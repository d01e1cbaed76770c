// Package faulty runs explorations of all orders of steps, and shows that they can fail. It builds the
// explorer with the code as it is, and with one faulty copy after the other. The programs do not have
// the race detector, which takes several times as long and has nothing to find in them.
package faulty

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nearcall/nearcall/internal/testing/needs"
)

// A Fault is a mistake in a file of the package: a text that occurs there once, and its replacement.
type Fault struct {
	Name     string
	File     string
	In       string // the scene that shows it; one of them if empty
	Old, New string
}

// Explore fails the test if the package's Find finds something wrong in the code as it is, and for each
// fault that it does not find. files are the package's files that Find needs, one of which declares it;
// they may be tests, and need only the standard library. Find explores one scene, or all if its name is
// empty, and returns how many states it has seen and what is wrong in one of them; "" if nothing is.
// With -short Explore only checks that the faults match the files.
func Explore(t *testing.T, files []string, faults []Fault) {
	t.Helper()
	source := map[string]string{}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		source[name] = string(b)
	}
	for _, f := range faults {
		if n := strings.Count(source[f.File], f.Old); n != 1 {
			t.Errorf("%s: %q stands in %s %d times, and should once", f.Name, f.Old, f.File, n)
		}
	}
	if testing.Short() || t.Failed() {
		return
	}
	needs.Program(t, "go")
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	faults = append([]Fault{{Name: "as it is"}}, faults...)
	var imports, finds strings.Builder
	for i, f := range faults {
		at := fmt.Sprintf("f%d", i)
		for name, text := range source {
			if name == f.File {
				text = strings.Replace(text, f.Old, f.New, 1)
			}
			write(at+"/"+strings.Replace(name, "_test.go", ".go", 1), text)
		}
		fmt.Fprintf(&imports, "\t%s \"faults/%s\"\n", at, at)
		fmt.Fprintf(&finds, "\t%s.Find,\n", at)
	}
	write("go.mod", "module faults\n\ngo 1.26\n")
	write("main.go", fmt.Sprintf(mainGo, &imports, &finds))
	build := exec.Command("go", "build", "-o", "explore", ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	for i, f := range faults {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			out, err := exec.Command(filepath.Join(dir, "explore"), strconv.Itoa(i), f.In).CombinedOutput()
			if err != nil {
				t.Fatalf("%v:\n%s", err, out)
			}
			states, fault, _ := strings.Cut(string(out), " ")
			if sound := fault == "\n"; sound != (f.Old == "") {
				t.Fatalf("in %s states: %s", states, fault)
			}
			fault, _, _ = strings.Cut(fault, "\n")
			t.Logf("%s states: %s", states, fault)
		})
	}
}

const mainGo = `package main

import (
	"fmt"
	"os"
	"strconv"
%s)

var finds = []func(scene string) (int, string){
%s}

func main() {
	i, _ := strconv.Atoi(os.Args[1])
	states, fault := finds[i](os.Args[2])
	fmt.Println(states, fault)
}
`
