package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

func TestMain(m *testing.M) {
	if beTheProcess() {
		return
	}
	if os.Getenv(commandEnv) != "" {
		main()
		return
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // or each second process would take a second to exit
	completeTime = time.Minute
	leak.Main(m)
}

// nearcallCommand runs the command and returns what it printed.
func nearcallCommand(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, stdio{strings.NewReader(""), &out, &errs})
	return code, out.String(), errs.String()
}

func TestArguments(t *testing.T) {
	for _, c := range []struct {
		args   []string
		code   int
		stdout string // part of the expected output; "" for none
		stderr string
	}{
		{nil, exitOK, "Usage:\n  nearcall [command]", ""},
		{[]string{"help"}, exitOK, "Usage:\n  nearcall [command]", ""},
		{[]string{"-h"}, exitOK, "Usage:\n  nearcall [command]", ""},
		{[]string{"--help"}, exitOK, "tour", ""},
		{[]string{"help"}, exitOK, "quic:HOST:PORT", ""},
		{[]string{"-version"}, exitOK, "nearcall " + nearcall.Version, ""},
		{[]string{"version"}, exitOK, "nearcall " + nearcall.Version, ""},
		{[]string{"version", "-x"}, exitUsage, "", "-x"},
		{[]string{"help"}, exitOK, "Exit codes: 0 success, 1 failure, 2 wrong command line, 130 interrupted", ""},
		{[]string{"help", "list"}, exitOK, "78 Unavailable", ""},
		{[]string{"help", "tour"}, exitOK, "-json", ""},
		{[]string{"tour", "-h"}, exitOK, "-json", ""},
		{[]string{"help", "tuor"}, exitOK, "Unknown help topic", ""},
		{[]string{"tuor"}, exitUsage, "", `unknown command "tuor" for "nearcall"; did you mean top or tour? 'nearcall help' lists the commands`},
		{[]string{"-plaintext", "-d", "{}", "unix:/x", "a.B/C"}, exitUsage, "", "; a command comes first, as in 'nearcall call "},
		{[]string{"-plaintext", "unix:/x"}, exitUsage, "", "unknown flag -plaintext; a command comes first"},
		{[]string{"-verbose"}, exitUsage, "", "-verbose"},
		{[]string{"tour", "-jsno"}, exitUsage, "", "unknown flag -jsno; did you mean -json? usage: nearcall tour"},
		{[]string{"list", "-use-reflection=false", "unix:/x"}, exitUsage, "", "unknown flag -use-reflection; usage: nearcall list"},
		{[]string{"list", "-unix", "/x"}, exitUsage, "", "write the target as unix:PATH"},
		{[]string{"list", "/x"}, exitUsage, "", "write unix:/x"},
		{[]string{"tour", "-time", "soon"}, exitUsage, "", "soon"},
		{[]string{"tour", "-time", "-1s"}, exitUsage, "", "-time -1s"},
		{[]string{"tour", "by", "train"}, exitUsage, "", `"by"`},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			code, stdout, stderr := nearcallCommand(t, c.args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, out := range []struct{ name, got, want string }{{"stdout", stdout, c.stdout}, {"stderr", stderr, c.stderr}} {
				if !strings.Contains(out.got, out.want) || out.want == "" && out.got != "" {
					t.Errorf("%s: %q, want %q in it", out.name, out.got, out.want)
				}
			}
		})
	}
}
