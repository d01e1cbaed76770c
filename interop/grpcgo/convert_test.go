package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearcall/nearcall/interop/internal/foreign"
)

func TestImportsAreRewrittenAndNothingElse(t *testing.T) {
	const before = `package x

import (
	"fmt"
	gonet "net"
	"net/http"

	"google.golang.org/grpc" // "net"
	"google.golang.org/grpc/codes"
)

var s = "google.golang.org/grpc"
`
	const after = `package x

import (
	"fmt"
	gonet "google.golang.org/grpc/neartest/shim/net"
	"net/http"

	"google.golang.org/grpc/neartest/shim/grpc" // "net"
	"google.golang.org/grpc/codes"
)

var s = "google.golang.org/grpc"
`
	got, err := rewrite([]byte(before))
	if err != nil {
		t.Fatal(err)
	}
	if got != after {
		t.Errorf("got\n%s\nwant\n%s", got, after)
	}
}

func TestAPatchThatDoesNotFitIsAnError(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.go")
	p := patch{file: "a.go", old: "b", new: "c", why: "a test"}
	for text, want := range map[string]string{"a": "0 times", "abb": "2 times"} {
		if err := foreign.Write(file, text); err != nil {
			t.Fatal(err)
		}
		if err := p.apply(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if err := foreign.Write(file, "abd"); err != nil {
		t.Fatal(err)
	}
	if err := p.apply(dir); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(file); string(b) != "acd" {
		t.Errorf("the file is %q", b)
	}
}

func TestWhatAPackageDoesNotDeclareItselfIsReexported(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	for file, text := range map[string]string{
		filepath.Join(from, "a.go"):      "package from\ntype A[K comparable, V any] struct{}\nfunc B() {}\nfunc (A[K, V]) C() {}\nconst D = 1\nvar E, f int\nfunc G[T any]() {}\ntype H int\n",
		filepath.Join(from, "a_test.go"): "package from\nfunc T() {}\n",
		filepath.Join(to, "a.go"):        "package to\nfunc H() {}\n",
	} {
		if err := foreign.Write(file, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := reexport(from, "example.com/from", to); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(to, "reexported.go"))
	if err != nil {
		t.Fatal(err)
	}
	const want = `package to

import from "example.com/from"

const D = from.D

type A[K comparable, V any] = from.A[K, V]

var B = from.B
var E = from.E
`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestMethodsOfASuiteAreTestsOfTheirOwn(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{
		"a_test.go": `package p
type s struct{}
func Test(t *testing.T) { grpctest.RunSubTests(t, s{}) }
func (s) TestOne(t *testing.T) {}
func (*s) TestTwo(t *testing.T) {}
func (o other) TestThree(t *testing.T) {}
func TestFour(t *testing.T) {}
func TestMain(m *testing.M) {}
func Testing() {}
`,
		"b_test.go": "package p\nfunc (s) TestFive(t *testing.T) {}\n",
		"c_test.go": "package p\nfunc (s) TestSix(t *testing.T) {}\n",
	} {
		if err := foreign.Write(filepath.Join(dir, "x", file), text); err != nil {
			t.Fatal(err)
		}
	}
	before := suites
	defer func() { suites = before }()
	suites = []pkg{{name: "p", units: []string{"c_test.go"}}}
	tests, err := list(dir, foreign.Suite{Name: "p", Dir: "x"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, test := range tests {
		got = append(got, test.Name+" "+test.Run)
	}
	const want = "TestOne ^Test$/^One$, TestTwo ^Test$/^Two$, TestFour ^TestFour$, TestFive ^Test$/^Five$"
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("tests are %s, want %s", s, want)
	}
}
