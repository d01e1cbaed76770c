package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nearcall/nearcall/bench/internal/child"
)

// A pair is two processes, a client and a server.
type pair struct {
	way
	server, client side
	undo           []func() error // undoes what startPair did; run in reverse order
}

// A side is one of the processes.
type side struct{ *child.Process }

// startPair starts both processes. They are killed when ctx is done.
func startPair(ctx context.Context, w way) (_ *pair, err error) {
	p := &pair{way: w}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.stop())
		}
	}()
	dir, err := os.MkdirTemp("", "scale")
	if err != nil {
		return nil, err
	}
	p.undo = append(p.undo, func() error { return os.RemoveAll(dir) })
	address := filepath.Join(dir, "s")
	if w.network == "tcp" {
		address = "127.0.0.1:0"
	}
	var target, network string
	if p.server, target, err = p.start(ctx, serves, w.network+":"+address); err != nil {
		return nil, err
	}
	if p.client, network, err = p.start(ctx, calls, target); err != nil {
		return nil, err
	}
	if network != w.network {
		return nil, fmt.Errorf("the connection's network is %q", network)
	}
	return p, nil
}

// start starts a side, and returns the first line that it prints.
func (p *pair) start(ctx context.Context, role, target string) (s side, said string, err error) {
	if s.Process, err = child.Start(ctx, []string{sideEnv + "=" + role + " " + p.stack + " " + target}); err != nil {
		return s, "", err
	}
	p.undo = append(p.undo, s.Stop)
	said, err = s.Hear()
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

// run makes the client run a load with n calls or streams at a time. The answer has the
// memory of both sides that the load needs.
func (p *pair) run(load string, n int, lasts time.Duration) (answer, error) {
	before, err := p.memory()
	if err != nil {
		return answer{}, err
	}
	a, err := p.client.ask(question{Do: begin, Load: load, Open: n, Lasts: lasts})
	if err != nil {
		return answer{}, err
	}
	during, err := p.memory()
	if err != nil {
		return answer{}, err
	}
	a.Memory = max(during-before, 0)
	_, err = p.client.ask(question{Do: end})
	return a, err
}

// memory returns how many bytes both sides use.
func (p *pair) memory() (int, error) {
	client, err := p.client.ask(question{Do: measure})
	if err != nil {
		return 0, err
	}
	server, err := p.server.ask(question{Do: measure})
	return client.Memory + server.Memory, err
}
