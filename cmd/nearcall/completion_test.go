package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// completions returns what could stand for the last word of a command line.
func completions(t *testing.T, words ...string) []string {
	t.Helper()
	code, stdout, stderr := nearcallCommand(t, append([]string{"__complete"}, words...)...)
	if code != exitOK {
		t.Errorf("%q: exit code %d, %s", words, code, stderr)
	}
	var all []string
	for line := range strings.Lines(stdout) {
		if name, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); !strings.HasPrefix(name, ":") {
			all = append(all, name)
		}
	}
	return all
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
		{[]string{"completion", ""}, []string{"bash", "zsh", "fish", "powershell"}},
		{[]string{"call", "--max"}, []string{"--max-time", "--max-msg-sz"}},
		{[]string{"call", "-max"}, []string{"-max-time", "-max-msg-sz"}},
		{[]string{"list", "-p"}, []string{"-proto", "-plaintext"}},
		{[]string{"list", "-plaintext"}, []string{"-plaintext"}},
		{[]string{"call", "-H"}, []string{"-H"}},
		{[]string{"list", ""}, []string{"unix:", "shm:", "tcp:", "ws://", "quic:", "grpc:"}},
		{[]string{"list", target, "near"}, []string{orders}},
		{[]string{"call", "-max-time", "5", target, orders + "/P"}, []string{orders + "/Place"}},
		{[]string{"describe", target, orders + "/P"}, []string{orders + "/Place"}},
		{[]string{"describe", target, "nearcall.examples.orders.Of"}, []string{"nearcall.examples.orders.Offer"}},
		{[]string{"call", "tcp:127.0.0.1:1", ""}, nil},
		{[]string{"call", "inproc:x", ""}, nil},
		{[]string{"call", target, orders + "/Place", ""}, nil},
	} {
		got := completions(t, c.words...)
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

// TestBashCompletesAndRunsNothing completes the names of a hostile server in bash.
func TestBashCompletesAndRunsNothing(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil || runtime.GOOS == "windows" {
		t.Skip("bash is not installed")
	}
	ran := filepath.Join(tempDir(t), "ran")
	touch := "touch${IFS}" + ran
	target := serveNear(t, "tcp:127.0.0.1:0", (&hostile{services: []string{
		"g.Greeter", "g.Greeter$(" + touch + ")", "g.Greeter`" + touch + "`", "g.Greeter;" + touch, "g.Greeter';" + touch + ";'", `g.Greeter";` + touch + `;"`,
		"g.Greeter\n" + touch, "g.Greeter\n:0\n" + touch, "g.Greeter|" + touch, "g.Greeter\t$(" + touch + ")", "$(" + touch + ")", "`" + touch + "`", "_activeHelp_ $(" + touch + ")",
	}}).register)
	// What bash has of the package bash-completion, which some systems lack.
	const try = `
nearcall() { NEARCALL_TEST_COMMAND=1 "$BIN" "$@"; }
_get_comp_words_by_ref() { words=("${COMP_WORDS[@]}") cword=$COMP_CWORD cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}; }
__ltrim_colon_completions() { :; }
compopt() { :; }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
__start_nearcall
printf '%s\n' "${COMPREPLY[@]}"
`
	for _, kind := range []string{"9", "63", "37"} { // a tab, the second one, and the menu
		for _, c := range []struct {
			words []string
			want  string
		}{
			{[]string{"nearcall", "li"}, "list"},
			{[]string{"nearcall", "list", target, ""}, "g.Greeter"},
			{[]string{"nearcall", "list", target, "g"}, "g.Greeter"},
			{[]string{"nearcall", "call", target, "g.Greeter/G"}, "g.Greeter/Greet"},
		} {
			cmd := exec.Command("bash", append([]string{"-c", succeeds(t, "completion", "bash") + try, "bash"}, c.words...)...)
			cmd.Env = append(os.Environ(), "BIN="+os.Args[0], "COMP_TYPE="+kind)
			out, err := cmd.CombinedOutput()
			if first, _, _ := strings.Cut(string(out), "  "); err != nil || strings.TrimSpace(first) != c.want {
				t.Errorf("%q, kind %s: %v, %q is offered, want %q", c.words, kind, err, out, c.want)
			}
			harmless(t, c.words, string(out))
		}
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("bash has run what the server said")
	}
}
