//go:build linux

package attack

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// A child is a process of this program in one of its roles. It reads commands, one per
// line, and answers each with a line of JSON. It exits when its standard input ends.
type child struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan []byte   // closed when standard output ends
	done    chan struct{} // closed when the process was waited for
	stderr  head
}

var errNoAnswer = errors.New("no answer")

// start starts a child, which is killed when ctx is done. It decodes the child's first line
// into hello.
func start(ctx context.Context, hello any, env []string, role string, args ...string) (*child, error) {
	c := &child{
		cmd:     exec.CommandContext(ctx, executable, append([]string{role}, args...)...),
		answers: make(chan []byte, 1),
		done:    make(chan struct{}),
	}
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.Stderr = &c.stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go c.read(out)
	if err := c.answer(30*time.Second, hello); err != nil {
		c.kill()
		return nil, fmt.Errorf("starting the %s: %w: %s", role, err, c.stderr.String())
	}
	return c, nil
}

func (c *child) read(out io.Reader) {
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		c.answers <- line
	}
	close(c.answers)
	_ = c.cmd.Wait()
	close(c.done)
}

// ask sends a command and waits for its answer.
func (c *child) ask(command string, limit time.Duration, answer any) error {
	if _, err := io.WriteString(c.in, command+"\n"); err != nil {
		return err
	}
	return c.answer(limit, answer)
}

func (c *child) answer(limit time.Duration, into any) error {
	select {
	case line, ok := <-c.answers:
		if !ok {
			return io.ErrUnexpectedEOF
		}
		return json.Unmarshal(line, into)
	case <-time.After(limit):
		return errNoAnswer
	}
}

func (c *child) pid() int { return c.cmd.Process.Pid }

func (c *child) alive() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// leave closes the child's standard input, so that it exits, and kills it after limit.
func (c *child) leave(limit time.Duration) {
	_ = c.in.Close()
	c.reap(limit)
}

func (c *child) kill() { c.reap(0) }

func (c *child) reap(limit time.Duration) {
	go func() { // discard answers that are still sent
		for range c.answers {
		}
	}()
	select {
	case <-c.done:
	case <-time.After(limit):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
	_ = c.in.Close()
}

// obey writes hello, and then answers commands until standard input ends.
func obey(hello any, do func(command string) any) error {
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(hello); err != nil {
		return err
	}
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		if err := out.Encode(do(commands.Text())); err != nil {
			return err
		}
	}
	return commands.Err()
}

// head keeps the first 4096 bytes that are written to it.
type head struct {
	mu   sync.Mutex
	kept []byte
}

func (h *head) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept = append(h.kept, b[:min(len(b), 4096-len(h.kept))]...)
	return len(b), nil
}

func (h *head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return string(h.kept)
}
