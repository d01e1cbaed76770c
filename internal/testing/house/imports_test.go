package house

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/nearcall/nearcall/internal/testing/needs"
)

// modules are the folders of the modules that the rules apply to: what users get with the core module,
// and the command.
var modules = []string{".", "cmd/nearcall"}

// goCmd runs the go command in the core module's root and returns what it prints.
func goCmd(t *testing.T, args ...string) string {
	t.Helper()
	needs.Program(t, "go")
	cmd := exec.Command("go", args...)
	cmd.Dir = "../../.."
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, exit.Stderr)
	}
	if err != nil {
		t.Fatalf("go %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

func TestImportsFlowOneWay(t *testing.T) {
	type listed struct {
		ImportPath string
		Imports    []string
	}
	local := 0
	var all strings.Builder
	for _, m := range modules {
		all.WriteString(goCmd(t, "-C", m, "list", "-e", "-deps", "-json=ImportPath,Imports", "./..."))
	}
	dec := json.NewDecoder(strings.NewReader(all.String()))
	for {
		var pkg listed
		err := dec.Decode(&pkg)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(pkg.ImportPath+"/", Module+"/") {
			local++
		}
		for _, imported := range pkg.Imports {
			if wrong := Check(Imports, pkg.ImportPath, imported); wrong != "" {
				t.Error(wrong)
			}
		}
	}
	if local < 3 {
		t.Errorf("go list knows %d packages of these modules: the test sees nothing", local)
	}
}

func TestModuleRequiresNothingElse(t *testing.T) {
	var mod struct {
		Module  struct{ Path string }
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal([]byte(goCmd(t, "mod", "edit", "-json")), &mod); err != nil {
		t.Fatal(err)
	}
	if mod.Module.Path != Module {
		t.Errorf("the module is %s, want %s", mod.Module.Path, Module)
	}
	for _, r := range mod.Require {
		if r.Indirect {
			continue
		}
		if wrong := CheckRequire(Requires, r.Path); wrong != "" {
			t.Error(wrong)
		}
	}
}

// TestCheckBites checks imports that do not exist.
func TestCheckBites(t *testing.T) {
	for _, c := range []struct {
		from, to string
		ok       bool
	}{
		{".", "internal/call", true},
		{".", "internal/transport/inproc", true},
		{".", "internal/testing/chaos", false},
		{".", "internal/testing/leak", false},
		{".", "cmd/nearcall", false},
		{"internal/call", "internal/codec", true},
		{"internal/call", "internal/transport/inproc", false},
		{"internal/call", ".", false},
		{"internal/codec", "internal/link", true},
		{"internal/codec", "internal/call", false},
		{"internal/codec", "internal/wait", false},
		{"internal/link", "internal/wait", true},
		{"internal/link", "internal/codec", false},
		{"internal/wait", "internal/link", false},
		{"internal/registry", "internal/link", true},
		{"internal/registry", "internal/call", false},
		{"internal/transport/inproc", "internal/link", true},
		{"internal/transport/inproc", "internal/call", false},
		{"internal/transport/inproc", "internal/testing/chaos", false},
		{"internal/transport/inproc", ".", false},
		{"internal/transport/tcp", "internal/call", false},
		{"cmd/nearcall", ".", true},
		{"cmd/nearcall", "internal/testing/chaos", false},
		{"cmd/nearcall/tour", "examples/orders", true},
		{"examples/orders/after", ".", true},
		{"examples/orders/after", "internal/call", false},
		{"internal/newcomer", "internal/wait", false}, // no rule yet
	} {
		wrong := Check(Imports, full(c.from), full(c.to))
		if got := wrong == ""; got != c.ok {
			t.Errorf("%s imports %s: allowed %t, want %t (%s)", c.from, c.to, got, c.ok, wrong)
		}
	}
	if wrong := Check(Imports, full("internal/wait"), "google.golang.org/grpc"); wrong != "" {
		t.Errorf("imports of other modules are not the table's business: %s", wrong)
	}
	if wrong := Check(Imports, Module+"2/x", full("internal/wait")); wrong != "" {
		t.Errorf("a module whose path only starts alike was judged: %s", wrong)
	}
}

func TestCheckRequireBites(t *testing.T) {
	if wrong := CheckRequire(Requires, "google.golang.org/grpc"); wrong != "" {
		t.Error(wrong)
	}
	if CheckRequire(Requires, "example.com/surprise") == "" {
		t.Error("a surprising requirement went through")
	}
}

func full(pkg string) string {
	if pkg == "." {
		return Module
	}
	return Module + "/" + pkg
}
