package interop

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// endingCases are about what a connection's end finds, and what the client gets of it: item 41. Each
// ending meets a call in each state.
var endingCases = func() (all []Case) {
	for _, e := range endings {
		all = append(all, Case{41, e.name + " meets calls in every state", func(c *C) { meet(c, e) }})
	}
	return append(all, Case{41, "Close after CloseSend", leave})
}()

// leave is a client that sends messages, says that they are all, and closes its connection. What of
// them the handler gets depends on when. It ends, and so does the call.
func leave(c *C) {
	over := make(chan struct{}, 2)
	conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
		defer func() { over <- struct{}{} }()
		s.SendHeader(nil)
		for {
			if _, err := s.Recv(); err != nil {
				return err
			}
		}
	}}})
	var all []duplexClient
	for _, bytes := range []int{1, 300_000} {
		ctx, _ := c.Cancellable()
		s, err := conn.FullDuplexCall(ctx)
		c.Err("start", err)
		_, err = s.Header()
		c.Err("header", err)
		for range 3 {
			c.Err("send", s.Send(in(strings.Repeat("x", bytes))))
		}
		c.Err("close", s.CloseSend())
		all = append(all, s)
	}
	conn.Link.Close()
	c.Wait(over)
	c.Wait(over)
	for _, s := range all {
		_, err := s.Recv()
		c.Note("recv ends: %v", err != nil)
	}
}

type duplexClient = grpc.BidiStreamingClient[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]

// An ending ends a connection.
type ending struct {
	name string
	ends func(age time.Duration) keepalive.ServerParameters
	idle bool                                     // only a connection without calls does
	mute bool                                     // the client goes silent
	cuts codes.Code                               // of calls that have not ended; OK if they go on
	end  func(conn *Conn) (ended <-chan struct{}) // nil: the connection ends when ends says so
}

var endings = []ending{
	{name: "GracefulStop", end: func(conn *Conn) <-chan struct{} {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			conn.GracefulStop()
		}()
		return ended
	}},
	{name: "Stop", cuts: codes.Unavailable, end: func(conn *Conn) <-chan struct{} {
		ended := make(chan struct{})
		go func() { // a loop's handlers may have to be released first
			defer close(ended)
			conn.Stop()
		}()
		return ended
	}},
	{name: "the client's Close", cuts: codes.Canceled, end: func(conn *Conn) <-chan struct{} {
		ended := make(chan struct{})
		close(ended)
		conn.Link.Close()
		return ended
	}},
	{name: "an age", ends: func(age time.Duration) keepalive.ServerParameters {
		return keepalive.ServerParameters{MaxConnectionAge: age}
	}},
	{name: "an age with a grace", cuts: codes.Unavailable, ends: func(age time.Duration) keepalive.ServerParameters {
		return keepalive.ServerParameters{MaxConnectionAge: age, MaxConnectionAgeGrace: age}
	}},
	{name: "keepalive", mute: true, cuts: codes.Unavailable, ends: func(age time.Duration) keepalive.ServerParameters {
		return keepalive.ServerParameters{Time: time.Second, Timeout: 4 * age} // the least Time; a client's is 10 s
	}},
	{name: "idleness", idle: true, ends: func(age time.Duration) keepalive.ServerParameters {
		return keepalive.ServerParameters{MaxConnectionIdle: age}
	}},
}

// A state is what a call is in when its connection ends.
type state struct {
	name    string
	running bool // the handler has not returned
	more    bool // not all that was sent has arrived
	handler func(h handling) error
}

// A handling is a handler's side of a state.
type handling struct {
	duplexServer
	sent chan<- struct{} // gets a value when the handler has sent all
}

// send sends n messages, each of one digit that is repeated.
func (h handling) send(n, bytes int) error {
	for i := range n {
		if err := h.Send(out(strings.Repeat(fmt.Sprint(i), bytes))); err != nil {
			return err
		}
	}
	return nil
}

// waits returns when the client has sent all, which it does when it has met the end.
func (h handling) waits() error {
	h.sent <- struct{}{}
	if _, err := h.Recv(); err != io.EOF {
		return err
	}
	return nil
}

var states = []state{
	{name: "an end without a header", handler: func(handling) error { return status.Error(codes.Aborted, "a") }},
	{name: "an end that is unread", handler: func(h handling) error {
		h.SendHeader(metadata.Pairs("h", "1"))
		return nil
	}},
	{name: "messages that are unread", handler: func(h handling) error { return h.send(3, 1) }},
	{name: "messages and a failure that are unread", handler: func(h handling) error {
		h.send(3, 1)
		return status.Error(codes.Aborted, "a")
	}},
	{name: "a message of nearly the window that is unread", handler: func(h handling) error { return h.send(1, 60_000) }},
	{name: "a header alone", running: true, handler: func(h handling) error {
		h.SendHeader(metadata.Pairs("h", "1"))
		return h.waits()
	}},
	{name: "unread messages of a handler that runs", running: true, handler: func(h handling) error {
		h.send(3, 1)
		return h.waits()
	}},
	{name: "a handler that has sent nothing", running: true, handler: func(h handling) error { return h.waits() }},
	{name: "a message above the window", more: true, handler: func(h handling) error { return h.send(1, 1_000_000) }},
	{name: "messages above the window", more: true, handler: func(h handling) error { return h.send(10, 40_000) }},
	{name: "messages far above the window", more: true, handler: func(h handling) error { return h.send(5, 1_000_000) }},
	{name: "a message above the window of a handler that runs", more: true, running: true, handler: func(h handling) error {
		if err := h.send(1, 1_000_000); err != nil {
			return err
		}
		return h.waits()
	}},
}

// meet makes a call of each state, ends their connection, and notes what the client gets then.
func meet(c *C, e ending) {
	if e.cuts != codes.OK {
		c.CallerLeaves()
	}
	if e.ends != nil && (c.env.Near || strings.HasSuffix(c.env.Name, "-peer")) {
		panic(notHere("nothing ages"))
	}
	var silence *atomic.Bool
	if e.mute {
		if strings.Contains(c.env.Name, "shm") || strings.Contains(c.env.Name, "proxy") {
			panic(notHere("the client cannot go silent, or not towards the server"))
		}
		silence = new(atomic.Bool)
	}
	met := slices.DeleteFunc(slices.Clone(states), func(s state) bool { return e.idle && (s.running || s.more) })
	var age time.Duration
	var ends keepalive.ServerParameters
	if e.ends != nil {
		age = c.Lasting(100 * time.Millisecond)
		ends = e.ends(age)
	}
	answers := c.Gate()
	sent, over := make(chan struct{}, len(met)), make(chan struct{}, len(met))
	conn := c.Start(Config{
		ServerEnds: ends, Silence: silence,
		Service: &Service{Empty: func(_ context.Context, m *pb.Empty) (*pb.Empty, error) { return m, nil }, Duplex: func(stream duplexServer) error {
			md, _ := metadata.FromIncomingContext(stream.Context())
			s := met[slices.IndexFunc(met, func(s state) bool { return s.name == md["state"][0] })]
			h := handling{stream, make(chan struct{}, 1)}
			if !s.more {
				h.sent = sent
			}
			err := s.handler(h)
			if s.running {
				over <- struct{}{}
			} else {
				h.sent <- struct{}{}
			}
			return err
		}, Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			answers.Until(ctx)
			return reply(strings.Repeat("u", 1_000_000)), nil
		}},
	})
	defer answers.Open()
	unary := make(chan struct{})
	ctx, _ := c.Cancellable()
	go func() {
		defer close(unary)
		if e.idle {
			return
		}
		a := c.Named("a unary call whose reply comes later")
		m, err := conn.UnaryCall(ctx, request("x"))
		a.Note("%d bytes", len(m.GetPayload().GetBody()))
		a.Code("unary", err)
	}()
	all := make([]duplexClient, len(met))
	for i, s := range met {
		ctx, _ := c.Cancellable()
		var err error
		all[i], err = conn.FullDuplexCall(metadata.AppendToOutgoingContext(ctx, "state", s.name), grpc.MaxCallRecvMsgSize(16<<20))
		c.Err("start", err)
	}
	for _, s := range met {
		if s.more {
			continue
		}
		if age == 0 {
			c.Wait(sent)
			continue
		}
		select {
		case <-sent:
		case <-time.After(10 * age): // the calls took longer to begin than the connection lasted
			c.Note("the connection ended too early")
			return
		}
	}
	for range 30 { // their replies do not overtake all that was sent before, whichever stream the server serves next
		_, err := conn.EmptyCall(c.Context(), new(pb.Empty))
		c.Err("empty", err)
	}
	time.Sleep(c.Lasting(20 * time.Millisecond))
	var ended <-chan struct{}
	switch {
	case e.mute: // the handlers that run are waited for
		silence.Store(true)
	case e.end == nil:
		time.Sleep(3 * age)
	default:
		ended = e.end(conn)
		c.Pause()
	}
	for _, s := range met {
		if e.cuts != codes.OK && s.running && !s.more {
			c.Wait(over)
		}
	}
	if e.cuts == codes.OK {
		answers.Open()
	}
	c.Wait(unary)
	answers.Open()
	for i, s := range met {
		h := c.Named(s.name)
		h.Err("close", all[i].CloseSend())
		h.receives(all[i], e, s.more)
	}
	if ended != nil {
		c.Wait(ended)
	}
}

// receives notes what comes out of a stream. What had not arrived when an ending cut it off may be lost.
func (a *Actor) receives(s duplexClient, e ending, more bool) {
	var got []string
	for {
		m, err := s.Recv()
		if err == nil {
			b := m.GetPayload().GetBody()
			got = append(got, fmt.Sprintf("%d of %q", len(b), slices.Compact(b)))
			continue
		}
		switch code := status.Code(err); {
		case more && e.cuts != codes.OK && (err == io.EOF || code == e.cuts):
			a.Note("it ends")
		case code == codes.Unavailable: // the text says what has ended it
			a.Note("%v, then Unavailable", got)
		default:
			a.Note("%v", got)
			a.Err("recv", err)
		}
		return
	}
}
