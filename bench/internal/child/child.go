// Package child runs the program again as another process, and exchanges lines with it.
package child

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// patience is how long a process may take to end before it is killed.
const patience = 10 * time.Second

// A Process is another process of this program. It must end when its standard input does.
type Process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Start starts a process with this one's environment and env. It is killed when ctx is done.
func Start(ctx context.Context, env []string, args ...string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return &Process{cmd, in, bufio.NewReader(out)}, nil
}

// ID returns the process ID.
func (p *Process) ID() int { return p.cmd.Process.Pid }

// Hear returns the next line that the process prints.
func (p *Process) Hear() (string, error) {
	line, err := p.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("the other process said %q and no more: %w", line, err)
	}
	return strings.TrimSuffix(line, "\n"), nil
}

// Ask sends a line to the process, and returns the next line that it prints.
func (p *Process) Ask(line string) (string, error) {
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		return "", err
	}
	return p.Hear()
}

// AskFor sends a question to the process as a line of JSON, and returns the answer, the next
// line that it prints. See [Respond].
func AskFor[A any](p *Process, question any) (a A, err error) {
	line, err := json.Marshal(question)
	if err != nil {
		return a, err
	}
	said, err := p.Ask(string(line))
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal([]byte(said), &a)
}

// Respond answers each question, a line of in, with a line to out. It returns when in ends, or
// the first error.
func Respond[Q, A any](in io.Reader, out io.Writer, answer func(Q) (A, error)) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var q Q
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			return err
		}
		a, err := answer(q)
		if err != nil {
			return err
		}
		line, err := json.Marshal(a)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "%s\n", line); err != nil {
			return err
		}
	}
	return lines.Err()
}

// Stop closes the process's input, and returns when the process has ended.
func (p *Process) Stop() error {
	kill := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	_ = p.in.Close()
	return p.cmd.Wait()
}
