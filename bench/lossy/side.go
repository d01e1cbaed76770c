package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall/bench/internal/child"
)

// sideEnv is the environment variable that makes this program one of the two processes. Its
// value is a setup in JSON.
const sideEnv = "NEARCALL_LOSSY_SIDE"

// A setup configures a process.
type setup struct {
	Way      way
	Address  string // to listen on, or to dial
	Client   bool
	Load     string
	Warm     time.Duration // from the start of the load to the first call that counts
	Lasts    time.Duration
	Interval time.Duration
}

// What a process can be asked, a line each. It answers with a line of JSON.
const (
	asksBegin    = "begin"    // the client: start the load. The answer is null
	asksMeasure  = "measure"  // the client: a measurement
	asksReceived = "received" // how many bytes of the load it has received
)

// A side is one of the processes.
type side struct{ *child.Process }

// startSide starts a process at an end of a network, and returns the address that it says.
func startSide(ctx context.Context, at *end, s setup) (p side, address string, err error) {
	value, err := json.Marshal(s)
	if err != nil {
		return p, "", err
	}
	if err = at.do(func() (err error) {
		p.Process, err = child.Start(ctx, []string{sideEnv + "=" + string(value)})
		return err
	}); err != nil {
		return side{}, "", err
	}
	if address, err = p.Hear(); err != nil {
		_ = p.Stop()
		return side{}, "", err
	}
	return p, address, nil
}

// ask sends a question, and stores the answer.
func (p side) ask(question string, answer any) error {
	line, err := p.Ask(question)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(line), answer)
}

// beASide runs as one of the two processes if sideEnv is set, and reports whether it was.
func beASide() bool {
	value, ok := os.LookupEnv(sideEnv)
	if !ok {
		return false
	}
	signal.Ignore(os.Interrupt, syscall.SIGTERM) // they end the first process, which closes the input
	var s setup
	err := json.Unmarshal([]byte(value), &s)
	if err == nil {
		err = s.run(os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "lossy: a second process: %v\n", err)
		os.Exit(1)
	}
	return true
}

// run is the process: it says its address and answers questions until in ends.
func (s setup) run(in io.Reader, out io.Writer) error {
	stack, err := stackOf(s.Way)
	if err != nil {
		return err
	}
	if s.Client {
		return s.call(stack, in, out)
	}
	srv := new(service)
	at, stop, err := stack.serve(s.Way, s.Address, srv)
	if err != nil {
		return err
	}
	defer stop()
	return answer(in, out, at, map[string]func(context.Context) (any, error){
		asksReceived: func(context.Context) (any, error) { return srv.received.Load(), nil },
	})
}

// call is run for the client.
func (s setup) call(by stack, in io.Reader, out io.Writer) error {
	dial := func() (conn, error) { return by.dial(s.Way, s.Address) }
	to, err := dial()
	if err != nil {
		return err
	}
	c := &client{dial: dial, to: testpb.NewTestServiceClient(to)}
	defer c.stop()
	defer to.Close() // before, so that the stream ends without waiting for the peer
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for range 3 { // warm
		if _, err := c.call(ctx); err != nil {
			return err
		}
	}
	return answer(in, out, s.Address, map[string]func(context.Context) (any, error){
		asksBegin:    func(ctx context.Context) (any, error) { return nil, c.begin(ctx, s.Load, s.Warm) },
		asksMeasure:  func(ctx context.Context) (any, error) { return c.measure(ctx, s.Load, s.Lasts, s.Interval) },
		asksReceived: func(context.Context) (any, error) { return c.received.Load(), nil },
	})
}

// answer says the address, and answers questions until in ends. The contexts of answers end
// with it, too.
func answer(in io.Reader, out io.Writer, address string, answers map[string]func(context.Context) (any, error)) error {
	if _, err := fmt.Fprintln(out, address); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	asked := make(chan string)
	go func() {
		defer close(asked)
		defer cancel()
		for lines := bufio.NewScanner(in); lines.Scan(); {
			asked <- lines.Text()
		}
	}()
	for question := range asked {
		f := answers[question]
		if f == nil {
			return fmt.Errorf("asked for %q", question)
		}
		a, err := f(ctx)
		if err == nil {
			err = json.NewEncoder(out).Encode(a)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
