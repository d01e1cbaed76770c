// Package house contains the project's own rules: a table says which package may
// import which, and a test compares it with the code.
package house

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Module is the path of the core module.
const Module = "github.com/nearcall/nearcall"

// A Rule says which packages of this module and the command's the packages that match Pkg may import.
// Patterns are those of path.Match, relative to the module's path. "." is the root
// package. A pattern that ends in "/..." also matches the packages below.
type Rule struct {
	Pkg string
	May []string
	Not []string // exceptions from May
}

// Imports is the table. The first rule that matches a package applies. A package
// that no rule matches is an error. The rules do not apply to tests.
var Imports = []Rule{
	{Pkg: "internal/wait"},
	{Pkg: "internal/durations"},
	{Pkg: "internal/goid"},
	{Pkg: "internal/scmrights"},
	{Pkg: "internal/counters"},
	{Pkg: "internal/message"},
	{Pkg: "internal/link", May: []string{"internal/counters", "internal/message", "internal/wait"}},
	// It has all that needs more of grpc-go than its public interfaces promise.
	{Pkg: "internal/grpcinside", May: []string{"internal/link"}},
	// What reads an option imports it.
	{Pkg: "internal/options", May: []string{"internal/durations", "internal/link"}},
	{Pkg: "internal/registry", May: []string{"internal/link", "internal/options"}},
	{Pkg: "internal/wire", May: []string{"internal/link"}},
	{Pkg: "internal/encoded", May: []string{"internal/link", "internal/message", "internal/wire"}},
	{Pkg: "internal/lifecycle", May: []string{"internal/durations", "internal/options"}},
	{Pkg: "internal/mux", May: []string{"internal/counters", "internal/encoded", "internal/lifecycle", "internal/link", "internal/message", "internal/mux/waits", "internal/options", "internal/wait", "internal/wire"}},
	{Pkg: "internal/mux/waits"},
	{Pkg: "internal/codec/...", May: []string{"internal/grpcinside", "internal/link", "internal/message"}},
	// What both sides of a call share. Neither side imports the other.
	{Pkg: "internal/call", May: []string{"internal/codec", "internal/grpcinside", "internal/link", "internal/message", "internal/wait"}},
	{Pkg: "internal/call/client", May: []string{"internal/call", "internal/codec", "internal/counters", "internal/durations", "internal/grpcinside", "internal/link", "internal/message", "internal/options", "internal/wait"}},
	// A unary call in process is one object of both sides, which inproc has.
	{Pkg: "internal/call/server", May: []string{"internal/call", "internal/codec", "internal/grpcinside", "internal/link", "internal/message", "internal/options", "internal/transport/inproc", "internal/wait"}},

	{Pkg: "internal/targets", May: []string{"internal/counters", "internal/link", "internal/mux", "internal/nearpath", "internal/options", "internal/registry", "internal/scmrights", "internal/sniff", "internal/socketfile", "internal/sockopt", "internal/transport/*", "internal/wire"}, Not: []string{"internal/transport/web"}},
	// It lets grpc-go resolve and balance.
	{Pkg: "internal/balance", May: []string{"internal/call", "internal/call/client", "internal/counters", "internal/durations", "internal/grpcinside", "internal/link", "internal/message", "internal/options", "internal/relay", "internal/targets", "internal/transport/grpcgo", "internal/wait"}},
	{Pkg: "internal/socketfile", May: []string{"internal/scmrights"}},
	{Pkg: "internal/proxy", May: []string{".", "internal/link", "internal/message", "internal/options", "internal/relay", "internal/targets", "internal/transport/grpcgo"}},
	{Pkg: "internal/relay", May: []string{"internal/link", "internal/message"}},
	{Pkg: "internal/grpcserver", May: []string{"internal/counters", "internal/grpcinside", "internal/link", "internal/options", "internal/wait"}},
	{Pkg: "internal/connector", May: []string{"internal/counters", "internal/durations", "internal/link", "internal/options", "internal/wait"}},

	{Pkg: "internal/sniff", May: []string{"internal/counters", "internal/link", "internal/scmrights", "internal/wire"}},
	{Pkg: "internal/nearpath", May: []string{"internal/counters", "internal/link", "internal/mux", "internal/options", "internal/scmrights", "internal/sockopt", "internal/wire"}},
	{Pkg: "internal/transport/sock", May: []string{"internal/counters", "internal/link", "internal/mux", "internal/nearpath", "internal/options", "internal/scmrights", "internal/sniff", "internal/sockopt", "internal/wire"}},
	// It implements net.Conn, and targets passes it to sock.
	{Pkg: "internal/transport/shm", May: []string{"internal/counters", "internal/link", "internal/scmrights"}},
	// It implements net.Conn, and targets and web pass it to sock.
	{Pkg: "internal/transport/websocket", May: []string{"internal/wire"}},
	// It opens WebSockets, over which sock serves sessions.
	{Pkg: "internal/transport/web", May: []string{"internal/counters", "internal/lifecycle", "internal/link", "internal/message", "internal/mux", "internal/options", "internal/sniff", "internal/sockopt", "internal/transport/sock", "internal/transport/websocket", "internal/wait"}},
	// Transports know neither gRPC's semantics nor one another.
	{Pkg: "internal/transport/*", May: []string{"internal/counters", "internal/link", "internal/message", "internal/options", "internal/wait"}},

	{Pkg: "loop", May: []string{"internal/durations", "internal/goid", "internal/wait"}},

	// The root package does not import these.
	{Pkg: "forward", May: []string{".", "internal/link", "internal/message", "internal/options", "internal/relay", "internal/sniff", "internal/transport/grpcgo"}},
	{Pkg: "metrics/...", May: []string{"internal/counters", "metrics/..."}},

	// It is a module, which the command requires.
	{Pkg: "quic/...", May: []string{".", "internal/counters", "internal/durations", "internal/encoded", "internal/lifecycle", "internal/link", "internal/message", "internal/options", "internal/registry", "internal/wait", "internal/wire", "quic/..."}},

	// The root package ties them together.
	{Pkg: ".", May: []string{"internal/...", "loop"}, Not: []string{"internal/testing/...", "internal/proxy"}},
	{Pkg: "cmd/...", May: []string{".", "cmd/...", "examples/...", "internal/...", "loop", "metrics/...", "quic"}, Not: []string{"internal/testing/..."}},

	// What tests need, and programs that run them, is in no product.
	{Pkg: "internal/testing/chaos", May: []string{".", "internal/testing/...", "loop"}},
	// It attacks servers built with the public API, with frames that it encodes itself.
	{Pkg: "internal/testing/attack", May: []string{".", "internal/link", "internal/testing/blockedmem", "internal/testing/leak", "internal/wire"}},
	{Pkg: "internal/testing/looptest", May: []string{"loop"}},
	{Pkg: "internal/testing/faulty", May: []string{"internal/testing/needs"}},
	{Pkg: "internal/testing/asking", May: []string{"internal/sniff"}},
	{Pkg: "internal/testing/...", May: []string{"internal/goid", "internal/link", "internal/message", "internal/testing/needs", "internal/wait"}},
	{Pkg: "tools/...", May: []string{"internal/testing/..."}},
	{Pkg: "test"},

	// Examples use only what users can import.
	{Pkg: "examples/...", May: []string{".", "examples/...", "forward", "loop", "metrics"}},
}

// Requires lists the modules that the core module may require directly.
var Requires = []string{
	"google.golang.org/grpc",
	"google.golang.org/protobuf",
	"golang.org/x/sys",
}

// Check returns what is wrong with pkg importing imported, or "". Both are full
// import paths. Imports of other modules are not checked.
func Check(rules []Rule, pkg, imported string) string {
	from, ok := local(pkg)
	if !ok {
		return ""
	}
	to, ok := local(imported)
	if !ok {
		return ""
	}
	for _, r := range rules {
		if !match(r.Pkg, from) {
			continue
		}
		if matchAny(r.May, to) && !matchAny(r.Not, to) {
			return ""
		}
		return fmt.Sprintf("%s imports %s: the rule for %s has %s",
			from, to, r.Pkg, r.allowed())
	}
	return fmt.Sprintf("%s imports %s: no rule matches %s; add one", from, to, from)
}

func (r Rule) allowed() string {
	if len(r.May) == 0 {
		return "nothing"
	}
	s := strings.Join(r.May, ", ")
	if len(r.Not) > 0 {
		s += " but not " + strings.Join(r.Not, ", ")
	}
	return s
}

// CheckRequire returns what is wrong with a direct requirement of the module
// path, or "".
func CheckRequire(allowed []string, path string) string {
	if slices.Contains(allowed, path) {
		return ""
	}
	return fmt.Sprintf("go.mod requires %s: only %s may be required", path, strings.Join(allowed, ", "))
}

// local returns an import path relative to the module's. ok is false for packages
// of other modules.
func local(importPath string) (pkg string, ok bool) {
	if importPath == Module {
		return ".", true
	}
	return strings.CutPrefix(importPath, Module+"/")
}

func matchAny(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return match(p, pkg) })
}

func match(pattern, pkg string) bool {
	if below, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == below || strings.HasPrefix(pkg, below+"/")
	}
	ok, err := path.Match(pattern, pkg)
	return ok && err == nil
}
