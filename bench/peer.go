package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// peerEnv has this program serve, as the second process of a tournament. Its
// value is a peerSetup.
const peerEnv = "NEARCALL_BENCH_PEER"

// A peerSetup is what a second process becomes.
type peerSetup struct {
	Stack    string // that serves
	Network  string // unix or tcp, or what nearcall makes of a unix socket
	Address  string // to listen on
	Dir      string // to remove in the end, should nobody else do so
	Messages int    // of a stream that the server sends
	Parked   int    // goroutines that sleep meanwhile
	Services string // other than those of the tournament, in tests
}

// A peer is a second process. It serves until its standard input ends.
type peer struct {
	Address string // where it is reached
	cmd     *exec.Cmd
	dir     string // of its socket

	mu  sync.Mutex // held from a question to its answer
	in  io.WriteCloser
	out *bufio.Reader
}

// patience is how long a process may take to end before it is killed.
const patience = 10 * time.Second

// startPeer starts a process of this program's own, and returns when it serves.
func startPeer(setup peerSetup) (_ *peer, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &peer{cmd: exec.Command(self)}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("the second process, %s: %w", setup.Stack, err), p.stop())
		}
	}()
	if setup.Address, err = p.address(setup.Network); err != nil {
		return nil, err
	}
	setup.Dir = p.dir
	value, err := json.Marshal(setup)
	if err != nil {
		return nil, err
	}
	p.cmd.Env = append(os.Environ(), peerEnv+"="+string(value))
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err = p.cmd.Start(); err != nil {
		return nil, err
	}
	p.in, p.out = in, bufio.NewReader(out)
	if p.Address, err = p.hear(saysAddress); err != nil {
		return nil, err
	}
	return p, nil
}

// address returns one that a process can listen on.
func (p *peer) address(network string) (_ string, err error) {
	if network == "tcp" {
		return "127.0.0.1:0", nil
	}
	if p.dir, err = os.MkdirTemp("", "bench"); err != nil {
		return "", err
	}
	return filepath.Join(p.dir, "s"), nil
}

// What a process says and is asked: lines of a word, and perhaps a value.
const (
	saysAddress = "address"
	saysCPU     = "cpu"
	asksCPU     = "cpu"
)

// hear returns the value of the next line, whose word must be the given one.
func (p *peer) hear(word string) (string, error) {
	line, err := p.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("it said %q and no more: %w", line, err)
	}
	said, value, ok := strings.Cut(strings.TrimSpace(line), " ")
	if !ok || said != word {
		return "", fmt.Errorf("it said %q where its %s was due", line, word)
	}
	return value, nil
}

// CPU asks the process how long the processors have worked for it.
func (p *peer) CPU() (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := io.WriteString(p.in, asksCPU+"\n"); err != nil {
		return 0, err
	}
	value, err := p.hear(saysCPU)
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseInt(value, 10, 64)
	if err == nil && ns < 0 {
		err = fmt.Errorf("processors worked for %d ns", ns)
	}
	return time.Duration(ns), err
}

// stop ends the process, and returns when it has ended.
func (p *peer) stop() error {
	var err error
	if p.in != nil {
		kill := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
		_ = p.in.Close()
		err = p.cmd.Wait()
		kill.Stop()
	}
	if p.dir != "" {
		err = errors.Join(err, os.RemoveAll(p.dir))
	}
	return err
}
