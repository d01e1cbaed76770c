package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/nearcall/nearcall/internal/testing/needs"
)

// completed returns what could stand for the last word of a command line.
func completed(t *testing.T, words ...string) []string {
	t.Helper()
	return strings.Fields(succeeds(t, append([]string{completeName}, words...)...))
}

func TestCompletion(t *testing.T) {
	target := onOne(t)
	for _, c := range []struct {
		words []string
		want  []string // part of what is expected, nil for nothing
	}{
		{[]string{""}, []string{"list", "describe", "call", "tour", "completion", "help"}},
		{[]string{"l"}, []string{"list"}},
		{[]string{"help", "d"}, []string{"describe"}},
		{[]string{"completion", ""}, []string{"bash", "zsh", "fish"}},
		{[]string{"call", "-max"}, []string{"-max-time", "-max-msg-sz"}},
		{[]string{"call", "-max-time", ""}, nil},
		{[]string{"list", ""}, []string{"unix:", "shm:", "tcp:", "ws://", "quic:", "grpc:"}},
		{[]string{"list", "u"}, []string{"unix:", "unix-abstract:"}},
		{[]string{"list", target, "near"}, []string{orders}},
		{[]string{"call", "-max-time", "5", target, orders + "/P"}, []string{orders + "/Place"}},
		{[]string{"describe", target, orders + "/P"}, []string{orders + "/Place"}},
		{[]string{"describe", target, "nearcall.examples.orders.Of"}, []string{"nearcall.examples.orders.Offer"}},
		{[]string{"call", "tcp:127.0.0.1:1", ""}, nil},
		{[]string{"call", "inproc:x", ""}, nil},
		{[]string{"call", target, orders + "/Place", ""}, nil},
		{[]string{"clal", ""}, nil},
		{[]string{"tour", ""}, nil},
	} {
		got := completed(t, c.words...)
		for _, want := range c.want {
			if !slices.Contains(got, want) {
				t.Errorf("%q: %q are offered, not %s", c.words, got, want)
			}
		}
		if c.want == nil && len(got) > 0 {
			t.Errorf("%q: %q are offered", c.words, got)
		}
	}
}

func TestCompletionKnowsSockets(t *testing.T) {
	needs.UnixSockets(t)
	dir := tempDir(t)
	lis, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "s;id;$(id)"), 0o700); err != nil { // a command for shells
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sentence"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []string{"unix:", "shm:", "grpc:unix:"} {
		got := completed(t, "list", scheme+dir+"/s")
		if want := []string{scheme + dir + "/sock", scheme + dir + "/sub/"}; !slices.Equal(got, want) {
			t.Errorf("%q are offered, want %q", got, want)
		}
	}
	t.Chdir(dir)
	if got := completed(t, "list", "unix:so"); !slices.Equal(got, []string{"unix:sock"}) {
		t.Errorf("%q are offered in the directory", got)
	}
}

// TestTheShellScripts checks the syntax of the scripts whose shell is installed, and what
// bash passes on.
func TestTheShellScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script := succeeds(t, "completion", shell)
		if program, err := exec.LookPath(shell); err != nil {
			t.Logf("%s is not installed", shell)
		} else if out, err := exec.Command(program, "-n", "-c", script).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", shell, err, out)
		}
	}
	if _, err := exec.LookPath("bash"); err != nil || runtime.GOOS == "windows" {
		t.Skip("bash is not installed")
	}
	// A stand-in for nearcall prints the words that it gets as candidates.
	const try = `
nearcall() { shift; printf '%s|' "$@" >&3; printf '%s\n' unix:/tmp/a unix:/tmp/b/ ; }
compopt() { :; }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$LINE" COMP_POINT=${#LINE}
_nearcall 3>&1
printf ' -> %s' "${COMPREPLY[*]}"
`
	for _, c := range []struct {
		line, want string
		words      []string
	}{
		{"nearcall li", "li| -> unix:/tmp/a unix:/tmp/b/", []string{"nearcall", "li"}},
		{"nearcall list unix:/t", "list|unix:/t| -> /tmp/a /tmp/b/", []string{"nearcall", "list", "unix", ":", "/t"}},
		{"nearcall list tcp::50", "list|tcp::50| -> unix:/tmp/a unix:/tmp/b/", []string{"nearcall", "list", "tcp", "::", "50"}},
		{"nearcall list unix:", "list|unix:| -> /tmp/a /tmp/b/", []string{"nearcall", "list", "unix", ":"}},
		{"nearcall list unix:s ", "list|unix:s|| -> unix:/tmp/a unix:/tmp/b/", []string{"nearcall", "list", "unix", ":", "s", ""}},
		{"nearcall call -H 'a: b' u", "call|-H|'a: b'|u| -> unix:/tmp/a unix:/tmp/b/", []string{"nearcall", "call", "-H", "'a: b'", "u"}},
	} {
		cmd := exec.Command("bash", append([]string{"-c", succeeds(t, "completion", "bash") + try, "bash"}, c.words...)...)
		cmd.Env = append(os.Environ(), "LINE="+c.line)
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != c.want {
			t.Errorf("%s: %v, %q, want %q", c.line, err, out, c.want)
		}
	}
}
