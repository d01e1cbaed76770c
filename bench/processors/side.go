package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall/bench/internal/child"
	"github.com/nearcall/nearcall/bench/internal/stack"
)

// sideEnv is the environment variable that makes this program one of the two processes. Its
// value is a role, and a stack and a target for the roles that need them.
const sideEnv = "NEARCALL_PROCESSORS_SIDE"

// Roles.
const (
	serves = "serves"
	calls  = "calls"
)

// A question asks a side to make calls, or to be idle.
type question struct {
	Callers int // concurrent callers; 0 to be idle
	Lasts   time.Duration
}

// An answer is a side's reply to a question.
type answer struct {
	CPU      time.Duration // CPU time of the process since its start
	Used     time.Duration // the part of it since the question
	Calls    int
	Took     time.Duration // time of the whole run
	P50, P99 time.Duration
}

// beASide runs as one of the two processes if sideEnv is set, and reports whether it was.
func beASide() bool {
	value, ok := os.LookupEnv(sideEnv)
	if !ok {
		return false
	}
	signal.Ignore(os.Interrupt, syscall.SIGTERM) // they end the first process, which closes the input
	role, rest, _ := strings.Cut(value, " ")
	by, target, _ := strings.Cut(rest, " ")
	be := map[string]func(by, target string, in io.Reader, out io.Writer) error{serves: serve, calls: call, works: work}[role]
	if err := be(by, target, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "processors: the process that %s: %v\n", role, err)
		os.Exit(1)
	}
	return true
}

// serve serves, prints its target, and answers questions until in ends.
func serve(by, target string, in io.Reader, out io.Writer) error {
	at, stop, err := stack.Serve(by, target, echo{})
	if err != nil {
		return err
	}
	defer stop()
	if _, err := fmt.Fprintln(out, at); err != nil {
		return err
	}
	return respond(nil, in, out)
}

// echo is the service.
type echo struct {
	testpb.UnimplementedTestServiceServer
}

func (echo) UnaryCall(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Payload: in.Payload}, nil
}

// call connects, prints the network of the connection, and answers questions until in ends.
func call(by, target string, in io.Reader, out io.Writer) error {
	conn, err := stack.Dial(by, target)
	if err != nil {
		return err
	}
	defer conn.Close()
	c := &caller{to: testpb.NewTestServiceClient(conn)}
	var p peer.Peer
	if err := c.call(context.Background(), &p); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, p.Addr.Network()); err != nil {
		return err
	}
	return respond(c, in, out)
}

// respond answers questions until in ends. c is nil on the server's side.
func respond(c *caller, in io.Reader, out io.Writer) error {
	return child.Respond(in, out, func(q question) (answer, error) { return q.answer(c) })
}

func (q question) answer(c *caller) (a answer, err error) {
	before, err := cpuTime()
	if err != nil {
		return a, err
	}
	switch {
	case q.Callers == 0:
		time.Sleep(q.Lasts)
	case c == nil:
		return a, errors.New("it has nobody to call")
	default:
		if a.Took, err = c.run(q.Callers, q.Lasts); err != nil {
			return a, err
		}
	}
	if a.CPU, err = cpuTime(); err != nil {
		return a, err
	}
	a.Used = a.CPU - before
	if q.Callers > 0 {
		a.Calls, a.P50, a.P99 = c.sum()
	}
	return a, nil
}
