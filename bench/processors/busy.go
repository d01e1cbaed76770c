package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/nearcall/nearcall/bench/internal/child"
)

// works is the role of a process that keeps a CPU busy, beside the two that are measured.
const works = "works"

// A load is the processes that keep CPUs busy.
type load []*child.Process

// startLoad starts the processes of a place. They are killed when ctx is done.
func startLoad(ctx context.Context, at place) (l load, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, l.stop())
		}
	}()
	for range at.busy {
		var p *child.Process
		err := confined(at.cpus, func() (err error) {
			p, err = child.Start(ctx, []string{sideEnv + "=" + works, "GOMAXPROCS=1"})
			return err
		})
		if err != nil {
			return l, err
		}
		l = append(l, p)
		if _, err := p.Hear(); err != nil {
			return l, err
		}
	}
	return l, nil
}

// stop ends the processes and waits for them.
func (l load) stop() error {
	var err error
	for _, p := range l {
		err = errors.Join(err, p.Stop())
	}
	return err
}

// work says that it begins, and keeps a CPU busy until in ends.
func work(_, _ string, in io.Reader, out io.Writer) error {
	if _, err := io.WriteString(out, "begins\n"); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(0)
	}()
	for n := uint64(1); ; {
		n = n*6364136223846793005 + 1442695040888963407 // never ends; its result is not used
		_ = n
	}
}
