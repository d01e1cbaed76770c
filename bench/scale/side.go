package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall/bench/internal/child"
	"github.com/nearcall/nearcall/bench/internal/stack"
)

// sideEnv is the environment variable that makes this program one of the two processes. Its
// value is a role, a stack and a target.
const sideEnv = "NEARCALL_SCALE_SIDE"

// Roles.
const (
	serves = "serves"
	calls  = "calls"
)

// What a question asks for.
const (
	begin   = "begin"   // run a load for as long as Lasts, and keep it running
	end     = "end"     // end the load
	measure = "measure" // say how much memory is used
)

// A question asks a side to do something.
type question struct {
	Do    string
	Load  string
	Open  int
	Lasts time.Duration
}

// An answer is a side's reply to a question.
type answer struct {
	Done     int // calls or messages that were answered
	Took     time.Duration
	P50, P99 time.Duration
	Memory   int // in bytes
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
	be := map[string]func(by, target string, in io.Reader, out io.Writer) error{serves: serve, calls: call}[role]
	if err := be(by, target, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "scale: the process that %s: %v\n", role, err)
		os.Exit(1)
	}
	return true
}

// serve serves, prints its target, and answers questions until in ends.
func serve(by, target string, in io.Reader, out io.Writer) error {
	at, stop, err := stack.ServeMany(by, target, echo{})
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

func (echo) FullDuplexCall(s testpb.TestService_FullDuplexCallServer) error {
	for {
		in, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: in.Payload}); err != nil {
			return err
		}
	}
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
	if _, err := c.to.UnaryCall(context.Background(), &testpb.SimpleRequest{}, grpc.Peer(&p)); err != nil {
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

func (q question) answer(c *caller) (answer, error) {
	switch {
	case q.Do == measure:
		return answer{Memory: used()}, nil
	case c == nil:
		return answer{}, errors.New("it has nobody to call")
	case q.Do == end:
		return answer{}, c.end()
	}
	return c.begin(q.Load, q.Open, q.Lasts)
}

// used returns how much memory the process uses for what is reachable, and for the stacks of
// its goroutines.
func used() int {
	runtime.GC()
	runtime.GC() // the second collection empties pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse)
}
