// Package child starts test binaries again, as processes that serve or call while tests run, and
// that can be killed.
package child

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// serving is what a child prints, followed by its target, when it serves.
const serving = "serving "

// A Process is a child that runs one test of the test binary that has started it.
type Process struct {
	Target string // what the child has passed to Ready

	cmd    *exec.Cmd
	stdin  io.Closer // the child exits when it is closed, also if this process dies
	stderr bytes.Buffer
}

// Start starts a child that runs test, with env in addition to this process's environment, and
// waits until it calls [Ready], for a minute at most.
func Start(test string, env ...string) (*Process, error) { return StartWith(nil, test, env...) }

// StartWith is Start for a child that inherits files, from the descriptor 3 on.
func StartWith(files []*os.File, test string, env ...string) (*Process, error) {
	p := &Process{cmd: exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.count=1", "-test.timeout=0")}
	p.cmd.Env = append(os.Environ(), append(env, "GORACE=atexit_sleep_ms=0")...)
	p.cmd.ExtraFiles = files
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = 10 * time.Second // if another process has inherited its pipes
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	kill := time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	lines := bufio.NewReader(stdout)
	said := ""
	for {
		line, err := lines.ReadString('\n')
		if target, ok := strings.CutPrefix(line, serving); ok {
			p.Target = strings.TrimSpace(target)
			return p, nil
		}
		said += line
		if err != nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
			return nil, fmt.Errorf("the child says %q, and %q", said, &p.stderr)
		}
	}
}

// Signal sends sig to the child.
func (p *Process) Signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

// Pid returns the child's process ID.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Wait waits for a child that exits by itself, for a minute at most. It must exit cleanly.
func (p *Process) Wait() error {
	kill := time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	err := p.cmd.Wait()
	_ = p.stdin.Close()
	return p.clean(err)
}

// clean returns an error if the child has exited with err, or has printed something.
func (p *Process) clean(err error) error {
	if err != nil || p.stderr.Len() > 0 {
		return fmt.Errorf("a child ended with %v, and says %q", err, &p.stderr)
	}
	return nil
}

// End sends how to a child and waits until it has exited. Unless it was killed it must
// exit cleanly. On systems without the signal, such as Windows, closing its stdin makes
// it exit.
func (p *Process) End(how os.Signal) error {
	if err := p.cmd.Process.Signal(how); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	if how != os.Kill {
		kill := time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Kill() })
		defer kill.Stop()
	}
	_ = p.stdin.Close()
	err := p.cmd.Wait()
	if how == os.Kill {
		err = nil
	}
	return p.clean(err)
}

// Ready is called by the child. It makes [Start] return, with target as the Process's.
func Ready(target string) { fmt.Println(serving + target) }

// Serve is Ready, and returns when the child must exit.
func Serve(target string) {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM) // not undone: it can arrive after the end of stdin
	Ready(target)
	eof := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(eof)
	}()
	select {
	case <-told:
	case <-eof: // the parent has exited
	}
}
