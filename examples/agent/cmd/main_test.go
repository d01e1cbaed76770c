package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// program is the environment variable that makes the test binary run the program instead of
// tests.
const program = "NEARCALL_AGENT_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(program) != "" {
		main()
		return
	}
	leak.Main(m)
}

// A process runs the program.
type process struct {
	*exec.Cmd
	out, errs bytes.Buffer
}

// begin starts the program at target. It ends with the test.
func begin(t *testing.T, target string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(os.Args[0], append([]string{"-at", target}, args...)...)}
	p.Env = append(os.Environ(), program+"=1")
	p.Stdout, p.Stderr = &p.out, &p.errs
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.ProcessState == nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	})
	return p
}

// stop ends p as Ctrl-C does, and wants it to end without an error.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		return // which has no signals
	}
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("%v: %s", err, p.errs.String())
	}
}

// free returns an address that can be listened on. It is not an ephemeral port, which
// another program may get meanwhile.
func free(t *testing.T) string {
	t.Helper()
	for range 100 {
		lis, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(10_000)))
		if err == nil {
			_ = lis.Close()
			return lis.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

// The three sides run in processes of their own, and begin in any order.
func TestTheProgramsRun(t *testing.T) {
	targets := []string{"tcp:" + free(t)}
	if needs.HasUnixSockets() {
		targets = append(targets, "unix:"+filepath.Join(t.TempDir(), "s"))
	}
	for _, target := range targets {
		network, _, _ := strings.Cut(target, ":")
		t.Run(network, func(t *testing.T) {
			submit, agent := begin(t, target, "submit", "0", "1000100"), begin(t, target, "agent", "ann")
			coordinator := begin(t, target, "coordinator")
			if err := submit.Wait(); err != nil {
				t.Fatalf("%v: %s", err, submit.errs.String())
			}
			if !regexp.MustCompile(`ann: 78498 primes from 0 to 1000000\nann: \d+ primes from 0 to 1000100\n$`).Match(submit.out.Bytes()) {
				t.Errorf("it prints %s", submit.out.String())
			}
			coordinator.stop(t)
			agent.stop(t)
		})
	}
}

func TestTheProgramSaysWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "usage"},
		{[]string{"agent"}, "usage"},
		{[]string{"submit", "1", "many"}, "many"},
	} {
		p := begin(t, "unix:nobody", c.args...)
		if err := p.Wait(); err == nil || !strings.Contains(p.errs.String(), c.says) {
			t.Errorf("%v: %v: %s", c.args, err, p.errs.String())
		}
	}
}
