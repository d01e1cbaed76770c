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

// peerEnv is the environment variable that makes this program the second process of a
// tournament. Its value is a peerSetup in JSON.
const peerEnv = "NEARCALL_BENCH_PEER"

// A peerSetup configures a second process.
type peerSetup struct {
	Stack    string // the name of the stack that serves
	Network  string // unix, tcp, or one of nearcall's or the tables' own
	Address  string // to listen on
	Dir      string // a directory to remove at the end, in case the first process has not
	Messages int    // messages per server stream
	Parked   int    // goroutines that sleep while it serves
	Services string // in tests: services to serve instead of the tournament's
}

// A peer is a second process. It serves until its standard input ends.
type peer struct {
	Address string // the address to connect to
	cmd     *exec.Cmd
	dir     string // the directory of its socket

	mu  sync.Mutex // held between a question and its answer
	in  io.WriteCloser
	out *bufio.Reader
}

// patience is how long a process may take to end before it is killed.
const patience = 10 * time.Second

// startPeer runs this program as a second process, and returns when that serves.
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

// address returns an address that the second process can listen on.
func (p *peer) address(network string) (_ string, err error) {
	switch network {
	case "tcp", tlsNetwork, quicNetwork:
		return "127.0.0.1:0", nil
	case webNetwork:
		return "//127.0.0.1:0/", nil
	}
	if p.dir, err = os.MkdirTemp("", "bench"); err != nil {
		return "", err
	}
	return filepath.Join(p.dir, "s"), nil
}

// The two processes exchange lines that consist of a word, and for some words a value.
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

// CPU asks the process for the CPU time that it has used.
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
