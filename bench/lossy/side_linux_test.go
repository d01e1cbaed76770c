package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// A talk is a conversation with a side that runs in this process, over the loopback
// interface.
type talk struct {
	t     *testing.T
	in    *io.PipeWriter
	out   *bufio.Reader
	ended chan error
}

func start(t *testing.T, s setup) (_ talk, address string) {
	t.Helper()
	question, in := io.Pipe()
	out, answer := io.Pipe()
	c := talk{t, in, bufio.NewReader(out), make(chan error, 1)}
	go func() {
		err := s.run(question, answer)
		answer.CloseWithError(errors.Join(err, io.EOF))
		c.ended <- err
	}()
	line, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return c, strings.TrimSpace(line)
}

func (c talk) ask(question string, answer any) {
	c.t.Helper()
	fmt.Fprintln(c.in, question)
	line, err := c.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, answer)
	}
	if err != nil {
		c.t.Fatalf("%s: %v", question, err)
	}
}

// TestSidesMeasure checks the calls and the loads of each stack without a slow link.
func TestSidesMeasure(t *testing.T) {
	for _, stack := range stacks {
		for _, load := range loads {
			t.Run(fmt.Sprintf("stack=%s/load=%s", stack.name, load), func(t *testing.T) {
				s := setup{Way: way{stack.name, "reno"}, Address: "127.0.0.1:0", Load: load, Lasts: 20 * time.Millisecond, Interval: time.Millisecond}
				server, at := start(t, s)
				s.Address, s.Client = at, true
				client, _ := start(t, s)
				var none any
				client.ask(asksBegin, &none)
				var m measurement
				client.ask(asksMeasure, &m)
				if m.Calls != 20 || m.P50 <= 0 || m.P99 < m.P50 {
					t.Errorf("it measured %+v", m)
				}
				receiver, silent := server, client
				if load == download {
					receiver, silent = client, server
				}
				var got, other int64
				for (load == upload || load == download) && got == 0 { // the first message has a way to go
					receiver.ask(asksReceived, &got)
				}
				if silent.ask(asksReceived, &other); other != 0 || got%bulk != 0 {
					t.Errorf("%d bytes arrived on one side, and %d on the other", got, other)
				}
				for _, c := range []talk{client, server} {
					c.in.Close()
					if err := <-c.ended; err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// TestASideEndsWithItsInput ends a client that measures for long.
func TestASideEndsWithItsInput(t *testing.T) {
	s := setup{Way: way{"nearcall, TCP", "reno"}, Address: "127.0.0.1:0", Load: nothing, Lasts: longest, Interval: time.Millisecond}
	server, at := start(t, s)
	s.Address, s.Client = at, true
	client, _ := start(t, s)
	fmt.Fprintln(client.in, asksMeasure)
	client.in.Close()
	if err := <-client.ended; err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("it ended with %v", err)
	}
	fmt.Fprintln(server.in, "hello")
	if err := <-server.ended; err == nil || !strings.Contains(err.Error(), "hello") {
		t.Errorf("a question that it does not know: %v", err)
	}
	server.in.Close()
}
