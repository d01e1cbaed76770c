package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nearcall/nearcall/bench/internal/child"
)

// A place is what two processes may use.
type place struct {
	procs int   // GOMAXPROCS of each
	cpus  []int // CPUs that they share
	quota int   // percent of a CPU for both; 0 for none
	busy  int   // other processes that keep these CPUs busy
}

// A pair is two processes, a client and a server.
type pair struct {
	way
	place
	server, client side
	undo           []func() error // undoes what startPair did; run in reverse order
}

// A side is one of the processes.
type side struct{ *child.Process }

// startPair starts both processes. They are killed when ctx is done.
func startPair(ctx context.Context, w way, at place) (_ *pair, err error) {
	p := &pair{way: w, place: at}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.stop())
		}
	}()
	dir, err := os.MkdirTemp("", "processors")
	if err != nil {
		return nil, err
	}
	p.undo = append(p.undo, func() error { return os.RemoveAll(dir) })
	var share *group
	if at.quota > 0 {
		if share, err = newGroup(at.quota); err != nil {
			return nil, err
		}
		p.undo = append(p.undo, share.remove)
	}
	var target, network string
	if p.server, target, err = p.start(ctx, serves, w.network+":"+filepath.Join(dir, "s"), share); err != nil {
		return nil, err
	}
	if p.client, network, err = p.start(ctx, calls, target, share); err != nil {
		return nil, err
	}
	if network != w.network {
		return nil, fmt.Errorf("the connection's network is %q", network)
	}
	return p, nil
}

// start starts a side, and returns the first line that it prints.
func (p *pair) start(ctx context.Context, role, target string, share *group) (s side, said string, err error) {
	err = confined(p.cpus, func() (err error) {
		s.Process, err = child.Start(ctx, []string{sideEnv + "=" + role + " " + p.stack + " " + target, "GOMAXPROCS=" + strconv.Itoa(p.procs)})
		return err
	})
	if s.Process != nil {
		p.undo = append(p.undo, s.Stop)
	}
	if err == nil && share != nil {
		err = share.add(s.ID())
	}
	if err == nil {
		said, err = s.Hear()
	}
	return s, said, err
}

// stop ends both processes and waits for them.
func (p *pair) stop() error {
	var err error
	for ; len(p.undo) > 0; p.undo = p.undo[:len(p.undo)-1] {
		err = errors.Join(err, p.undo[len(p.undo)-1]())
	}
	return err
}

func (s side) ask(q question) (answer, error) { return child.AskFor[answer](s.Process, q) }

// call makes the client call the server, and returns the client's answer with the CPU time
// of both.
func (p *pair) call(callers int, lasts time.Duration) (answer, error) {
	before, err := p.server.ask(question{})
	if err != nil {
		return answer{}, err
	}
	a, err := p.client.ask(question{callers, lasts})
	if err != nil {
		return answer{}, err
	}
	after, err := p.server.ask(question{})
	a.Used += after.CPU - before.CPU
	return a, err
}

// rest keeps both processes idle, and returns the CPU time that each used.
func (p *pair) rest(lasts time.Duration) (client, server time.Duration, err error) {
	type heard struct {
		answer
		error
	}
	other := make(chan heard)
	go func() {
		a, err := p.server.ask(question{0, lasts})
		other <- heard{a, err}
	}()
	a, err := p.client.ask(question{0, lasts})
	b := <-other
	return a.Used, b.Used, errors.Join(err, b.error)
}
