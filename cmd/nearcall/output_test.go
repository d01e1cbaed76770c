package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

// commandEnv makes the test binary run the command.
const commandEnv = "NEARCALL_TEST_COMMAND"

// runProcess runs the command in a process of its own, with stdout.
func runProcess(t *testing.T, stdout *os.File, args ...string) (exit *exec.ExitError, stderr string) {
	t.Helper()
	var errs bytes.Buffer
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), commandEnv+"=1")
	cmd.Stdout, cmd.Stderr = stdout, &errs
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return exit, errs.String()
}

// printing returns command lines that print.
func printing(t *testing.T) [][]string {
	target := onOne(t)
	return [][]string{
		{"list", target},
		{"list", target, orders},
		{"describe", target},
		{"describe", target, orders + "/Place"},
		{"call", target, orders + "/List", "{}"},
		{"top", "-interval", "0.01", counting(t)},
		{"help"},
		{"help", "call"},
		{"list", "-h"},
		{"version"},
		{"-version"},
		{"completion", "bash"},
	}
}

func TestAFailedWriteIsAnError(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("the system has no device that is always full: ", err)
	}
	defer full.Close()
	_, err = full.WriteString(" ")
	why := errors.Unwrap(err) // which systems say in their own words
	if why == nil {
		t.Fatal("/dev/full takes what is written: ", err)
	}
	for _, args := range printing(t) {
		exit, stderr := runProcess(t, full, args...)
		if exit == nil || exit.ExitCode() != exitFailed || !strings.HasPrefix(stderr, "nearcall") || !strings.HasSuffix(stderr, ": "+why.Error()+"\n") || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: %v, stderr %q", args, exit, stderr)
		}
	}
}

// TestAClosedPipeEndsTheCommand checks that the command ends by SIGPIPE, as other tools do, and
// says nothing.
func TestAClosedPipeEndsTheCommand(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no signals")
	}
	for _, args := range printing(t) {
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = reader.Close()
		exit, stderr := runProcess(t, writer, args...)
		_ = writer.Close()
		if exit == nil || stderr != "" || !strings.Contains(exit.String(), "broken pipe") {
			t.Errorf("%q: %v, stderr %q", args, exit, stderr)
		}
	}
}

func TestVersionTellsTheBuild(t *testing.T) {
	text := versionText(&debug.BuildInfo{Main: debug.Module{Path: "example.org/nearcall", Version: "v1.2.3+dirty"}}, true)
	_, build, _ := strings.Cut(text, "\n")
	if want := "module example.org/nearcall v1.2.3+dirty\n"; build != want {
		t.Errorf("it prints %q, want %q", build, want)
	}
}

func TestOutputIsEscaped(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"tea, Tee, чай, 茶 👩‍🍳 �\n\t", "tea, Tee, чай, 茶 👩‍🍳 �\n\t"},
		{"\x00\x1b[2J\r\x7f", `\u0000\u001b[2J\u000d\u007f`},
		{"\u0080\u009b2J\u2028\u2029\u202a\u202e\u2066\u2069\u200e\u061c", `\u0080\u009b2J\u2028\u2029\u202a\u202e\u2066\u2069\u200e\u061c`},
		{"\x9b2J \xe2\x80 \xff", `\x9b2J \xe2\x80 \xff`},
	} {
		var out bytes.Buffer
		if n, err := (&sink{Writer: &out}).Write([]byte(c.text)); out.String() != c.want || n != len(c.text) || err != nil {
			t.Errorf("%q is written as %q, and %d, %v returned", c.text, out.String(), n, err)
		}
	}
	if got := clean("a\nb\tc"); got != `a\u000ab\u0009c` {
		t.Errorf("a name is written as %q", got)
	}
}
