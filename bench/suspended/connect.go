package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/bench/internal/child"
)

// A connection is a client with its own host.
type connection struct {
	client testpb.TestServiceClient
	undo   []func() error // undoes what open did; run in reverse order
}

// open starts the line's host, in this process or a second one, and suspends the given
// number of the crowd's tasks there.
func (l line) open(tasks int) (_ *connection, err error) {
	c := new(connection)
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	var dial func() (*nearcall.ClientConn, error)
	if l.network == inProcess {
		h, err := newHost(l.loop, l.crowd, tasks)
		if err != nil {
			return nil, err
		}
		c.undo = append(c.undo, h.end)
		dial = func() (*nearcall.ClientConn, error) { return h.srv.Client(), nil }
	} else {
		target, err := c.startServer(setup{Loop: l.loop, Crowd: l.crowd.name, Tasks: tasks})
		if err != nil {
			return nil, err
		}
		dial = func() (*nearcall.ClientConn, error) {
			return nearcall.NewClient(target, nearcall.WithMaxSharedMemory(0))
		}
	}
	if c.client, err = c.connect(dial); err != nil {
		return nil, err
	}
	if l.crowd.atClient == nil || tasks == 0 {
		return c, nil
	}
	theirs := c.client
	if l.crowd.elsewhere {
		if theirs, err = c.connect(dial); err != nil {
			return nil, err
		}
	}
	release, err := l.crowd.atClient(theirs, tasks)
	if err != nil {
		return nil, err
	}
	c.undo = append(c.undo, release)
	return c, nil
}

func (c *connection) connect(dial func() (*nearcall.ClientConn, error)) (testpb.TestServiceClient, error) {
	conn, err := dial()
	if err != nil {
		return nil, err
	}
	c.undo = append(c.undo, conn.Close)
	return testpb.NewTestServiceClient(conn), nil
}

// startServer starts a process that serves a unix socket, and returns the target.
func (c *connection) startServer(s setup) (target string, err error) {
	dir, err := os.MkdirTemp("", "suspended")
	if err != nil {
		return "", err
	}
	c.undo = append(c.undo, func() error { return os.RemoveAll(dir) })
	s.Target = overUnix + ":" + filepath.Join(dir, "s")
	value, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	server, err := child.Start(context.Background(), []string{serverEnv + "=" + string(value)})
	if err != nil {
		return "", err
	}
	c.undo = append(c.undo, server.Stop)
	return server.Hear()
}

// close ends everything that open started, and waits for it.
func (c *connection) close() error {
	var err error
	for ; len(c.undo) > 0; c.undo = c.undo[:len(c.undo)-1] {
		err = errors.Join(err, c.undo[len(c.undo)-1]())
	}
	return err
}
