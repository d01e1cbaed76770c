package interop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
)

// contextCases are about contexts of types outside package context, and how far gRPC trusts
// what they return. They belong to items 1 and 24.
var contextCases = []Case{
	{1, "contexts that have ended with errors of their own", func(c *C) {
		var ran atomic.Int32
		conn := c.Start(Config{Service: countingService(&ran)})
		warmUp(c, conn, &ran)
		for _, end := range oddEnds {
			noteCalls(c, conn, end.name, ownContext{Context: c.Context(), done: closedChan, err: end.err})
		}
		c.Note("handlers: %d", ran.Load())
	}},
	{1, "contexts that have ended with a cause", func(c *C) {
		var ran atomic.Int32
		conn := c.Start(Config{Service: countingService(&ran)})
		warmUp(c, conn, &ran)
		cause := errors.New("the cause")
		cancelled, cancel := context.WithCancelCause(c.Context())
		cancel(cause)
		noteCalls(c, conn, "cancelled", cancelled)
		late, stop := context.WithDeadlineCause(c.Context(), time.Now().Add(-time.Second), cause)
		defer stop()
		noteCalls(c, conn, "deadline", late)
		short, stop := context.WithTimeoutCause(c.Context(), 0, cause)
		defer stop()
		noteCalls(c, conn, "timeout", short)
		c.Note("handlers: %d", ran.Load())
	}},
	{1, "a deadline that has passed, and no timer that said so", func(c *C) {
		var ran atomic.Int32
		conn := c.Start(Config{Service: countingService(&ran)})
		warmUp(c, conn, &ran)
		for _, past := range []time.Time{time.Now().Add(-time.Nanosecond), time.Unix(0, 0), {}} {
			noteCalls(c, conn, "Done open", ownContext{Context: c.Context(), deadline: past, bounded: true, done: make(chan struct{})})
			noteCalls(c, conn, "Done nil", ownContext{Context: c.Context(), deadline: past, bounded: true, endless: true})
		}
		c.Note("handlers: %d", ran.Load())
	}},
	{1, "a deadline that passes before the timer says so", func(c *C) {
		var ran atomic.Int32
		conn := c.Start(Config{Service: countingService(&ran)})
		warmUp(c, conn, &ran)
		wrong := 0
		for range 200 {
			ctx, cancel := context.WithTimeout(c.Context(), time.Microsecond)
			for d, _ := ctx.Deadline(); !time.Now().After(d); {
			}
			if _, err := conn.UnaryCall(ctx, request("x")); status.Code(err) != codes.DeadlineExceeded {
				wrong++
			}
			if s, err := conn.FullDuplexCall(ctx); err == nil {
				_, err = s.Recv()
				c.Err("a stream begins", err)
			}
			cancel()
		}
		c.Note("wrong: %d, handlers: %d", wrong, ran.Load())
	}},
	{1, "what Deadline says of no deadline", func(c *C) {
		h := c.Named("handler")
		conn := c.Start(Config{Service: lookingService(h)})
		for _, t := range []time.Time{{}, time.Unix(0, 0), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)} {
			noteCalls(c, conn, "unbounded", ownContext{Context: c.Context(), deadline: t})
			noteCalls(c, conn, "unbounded, and Done nil", ownContext{Context: c.Context(), deadline: t, endless: true})
		}
	}},
	{1, "an Err while Done is not closed", func(c *C) {
		h := c.Named("handler")
		conn := c.Start(Config{Service: lookingService(h)})
		for _, end := range oddEnds {
			noteCalls(c, conn, end.name+", Done nil", ownContext{Context: c.Context(), endless: true, err: end.err})
			noteCalls(c, conn, end.name+", Done open", ownContext{Context: c.Context(), done: make(chan struct{}), err: end.err})
		}
	}},
	{1, "contexts without the end of theirs", func(c *C) {
		h := c.Named("handler")
		conn := c.Start(Config{Service: lookingService(h)})
		cancelled, cancel := c.Cancellable()
		cancel()
		noteCalls(c, conn, "cancelled", context.WithoutCancel(cancelled))
		late, cancel := context.WithDeadline(c.Context(), time.Now().Add(-time.Second))
		defer cancel()
		noteCalls(c, conn, "late", context.WithoutCancel(late))
	}},
	{1, "contexts made from such that have ended with errors of their own", func(c *C) {
		var ran atomic.Int32
		conn := c.Start(Config{Service: countingService(&ran)})
		warmUp(c, conn, &ran)
		for _, end := range oddEnds {
			own := ownContext{Context: c.Context(), done: closedChan, err: end.err}
			noteCalls(c, conn, end.name+", with a value", context.WithValue(own, own.done, 1))
			ctx, cancel := context.WithTimeout(own, time.Hour)
			noteCalls(c, conn, end.name+", with a timeout", ctx)
			cancel()
		}
		c.Note("handlers: %d", ran.Load())
	}},

	{24, "contexts that end with errors of their own during a call", func(c *C) {
		for _, end := range oddEnds {
			endDuring(c, end.name, end.err, func(base context.Context) (context.Context, func()) {
				own := &endingContext{Context: base, done: make(chan struct{})}
				return own, func() { own.end(end.err) }
			})
		}
	}},
	{24, "contexts of their own with AfterFunc that end during a call", func(c *C) {
		for _, end := range oddEnds {
			endDuring(c, end.name, end.err, func(base context.Context) (context.Context, func()) {
				own := &funcContext{endingContext: endingContext{Context: base, done: make(chan struct{})}}
				return own, func() { own.end(end.err) }
			})
		}
	}},
	{24, "contexts that end with a cause during a call", func(c *C) {
		cause := errors.New("the cause")
		endDuring(c, "cancelled", context.Canceled, func(base context.Context) (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(base)
			return ctx, func() { cancel(cause) }
		})
		endDuring(c, "made from one", cause, func(base context.Context) (context.Context, func()) {
			own := &endingContext{Context: base, done: make(chan struct{})}
			ctx, cancel := context.WithTimeoutCause(own, time.Hour, cause)
			c.cleanup = append(c.cleanup, cancel)
			return ctx, func() { own.end(cause) }
		})
	}},
	{24, "an Err that stands before Done is closed", func(c *C) {
		h := c.Named("handler")
		started, seen, over := c.Gate(), c.Gate(), c.Gate()
		conn := c.Start(Config{Service: &Service{Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			defer over.Open()
			h.Note("at first %v", ctx.Err())
			started.Open()
			Until(ctx, ctx.Done())
			h.Note("%v; after Done was closed: %v", ctx.Err(), seen.IsOpen())
			return nil, ctx.Err()
		}}})
		own := &endingContext{Context: c.Context(), done: make(chan struct{}), why: errors.New("known early")}
		go func() {
			started.Wait()
			c.Pause()
			seen.Open()
			own.end(own.why)
		}()
		_, err := conn.UnaryCall(own, request("x"))
		c.Err("unary", err)
		over.Wait()
	}},
	{24, "a deadline that no timer keeps", func(c *C) {
		conn := c.Start(Config{Service: &Service{
			Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				Until(ctx, ctx.Done())
				return nil, ctx.Err()
			},
			Duplex: func(s duplexServer) error {
				Until(s.Context(), s.Context().Done())
				return s.Context().Err()
			},
		}})
		for range 2 {
			own := ownContext{Context: c.Context(), deadline: time.Now().Add(200 * time.Millisecond), bounded: true, endless: true}
			_, err := conn.UnaryCall(own, request("x"))
			c.Code("unary", err)
			own.deadline = time.Now().Add(200 * time.Millisecond)
			s, err := conn.FullDuplexCall(own)
			c.Err("start", err)
			_, err = s.Recv()
			c.Code("recv", err)
		}
	}},
}

// oddEnds are errors that contexts can end with.
var oddEnds = []struct {
	name string
	err  error
}{
	{"own", errors.New("an end of its own")},
	{"own that cannot be compared", manyErrors{"one", "two"}},
	{"wrapped Canceled", fmt.Errorf("wrapped: %w", context.Canceled)},
	{"wrapped DeadlineExceeded", fmt.Errorf("wrapped: %w", context.DeadlineExceeded)},
	{"status", status.Error(codes.Aborted, "of a status")},
	{"status DeadlineExceeded", status.Error(codes.DeadlineExceeded, "of a status")},
	{"wrapped status", fmt.Errorf("wrapped: %w", status.Error(codes.DataLoss, "of a status"))},
	{"unexpected EOF", io.ErrUnexpectedEOF},
	{"Canceled", context.Canceled},
	{"DeadlineExceeded", context.DeadlineExceeded},
}

// manyErrors is an error that cannot be compared: == panics.
type manyErrors []string

func (e manyErrors) Error() string { return fmt.Sprint([]string(e)) }

// An ownContext returns what its fields say, and never changes.
type ownContext struct {
	context.Context
	deadline time.Time
	bounded  bool // second result of Deadline
	endless  bool // Done returns nil
	done     <-chan struct{}
	err      error
}

func (x ownContext) Deadline() (time.Time, bool) { return x.deadline, x.bounded }
func (x ownContext) Err() error                  { return x.err }
func (x ownContext) Value(key any) any           { return x.Context.Value(key) }
func (x ownContext) Done() <-chan struct{} {
	if x.endless || x.done != nil {
		return x.done
	}
	return x.Context.Done()
}

// An endingContext ends when the case ends it.
type endingContext struct {
	context.Context
	done chan struct{}
	mu   sync.Mutex
	why  error
}

func (x *endingContext) Done() <-chan struct{} { return x.done }

func (x *endingContext) Err() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.why
}

func (x *endingContext) end(why error) {
	x.mu.Lock()
	x.why = why
	x.mu.Unlock()
	close(x.done)
}

// A funcContext has an AfterFunc method, so package context needs no goroutine to watch it.
type funcContext struct {
	endingContext
	next   int
	afters map[int]func()
}

func (x *funcContext) AfterFunc(f func()) (stop func() bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.why != nil {
		go f()
		return func() bool { return false }
	}
	if x.afters == nil {
		x.afters = map[int]func(){}
	}
	n := x.next
	x.next++
	x.afters[n] = f
	return func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		_, there := x.afters[n]
		delete(x.afters, n)
		return there
	}
}

func (x *funcContext) end(why error) {
	x.endingContext.end(why)
	x.mu.Lock()
	afters := x.afters
	x.afters = nil
	x.mu.Unlock()
	for _, f := range afters {
		go f()
	}
}

// warmUp makes a call, so that later ones do not wait for the connection.
func warmUp(c *C, conn *Conn, ran *atomic.Int32) {
	_, err := conn.UnaryCall(c.Context(), request("x"))
	c.Err("warm up", err)
	ran.Store(0)
}

// lookingService notes the contexts that handlers get.
func lookingService(h *Actor) *Service {
	look := func(ctx context.Context) {
		_, ok := ctx.Deadline()
		h.Note("deadline %v, err %v", ok, ctx.Err())
	}
	return &Service{
		Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			look(ctx)
			return echo(ctx, m)
		},
		Output: func(_ *pb.StreamingOutputCallRequest, s outputServer) error {
			look(s.Context())
			return s.Send(out("x"))
		},
		Input: func(s inputServer) error {
			look(s.Context())
			return s.SendAndClose(&pb.StreamingInputCallResponse{AggregatedPayloadSize: 1})
		},
		Duplex: func(s duplexServer) error {
			look(s.Context())
			_, err := s.Recv()
			if err != nil {
				return err
			}
			return s.Send(out("x"))
		},
	}
}

// noteCalls notes the outcome of a call of each kind under ctx.
func noteCalls(c *C, conn *Conn, name string, ctx context.Context) {
	finished := 0
	_, err := conn.UnaryCall(ctx, request("x"), grpc.OnFinish(func(error) { finished++ }))
	c.Err(name+": unary", err)
	c.Note("finished %d", finished)
	_, err = conn.UnaryCall(ctx, request("x"), grpc.WaitForReady(true))
	c.Err(name+": unary, wait for ready", err)
	if s, err := conn.StreamingOutputCall(ctx, in("x")); err != nil {
		c.Err(name+": server stream", err)
	} else {
		_, err = s.Recv()
		c.Err(name+": server stream, recv", err)
		_, err = s.Recv()
		c.Err(name+": server stream, end", err)
	}
	if s, err := conn.StreamingInputCall(ctx); err != nil {
		c.Err(name+": client stream", err)
	} else {
		_, err = s.CloseAndRecv()
		c.Err(name+": client stream, close and recv", err)
	}
	if s, err := conn.FullDuplexCall(ctx); err != nil {
		c.Err(name+": bidi stream", err)
	} else {
		c.Err(name+": bidi stream, send", s.Send(in("x")))
		_, err = s.Recv()
		c.Err(name+": bidi stream, recv", err)
		_, err = s.Recv()
		c.Err(name+": bidi stream, end", err)
	}
	if s, err := conn.NewStream(ctx, unaryDesc, unaryCall); err != nil {
		c.Err(name+": unary by NewStream", err)
	} else {
		c.Err(name+": unary by NewStream, send", s.SendMsg(request("x")))
		c.Err(name+": unary by NewStream, recv", s.RecvMsg(&pb.SimpleResponse{}))
	}
}

// endDuring notes what both sides see of calls whose contexts end with why while their
// handlers run. make returns a context, and a function that ends it.
func endDuring(c *C, name string, why error, make func(base context.Context) (context.Context, func())) {
	h := c.Named("handler")
	var started, over *Gate
	wait := func(ctx context.Context) error {
		defer over.Open()
		started.Open()
		Until(ctx, ctx.Done())
		h.Note("%s: %v, cause %v", name, ctx.Err(), context.Cause(ctx))
		return ctx.Err()
	}
	conn := c.Start(Config{Service: &Service{
		Unary:  func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) { return nil, wait(ctx) },
		Duplex: func(s duplexServer) error { return wait(s.Context()) },
	}})
	begin := func() (ctx context.Context, endOnceStarted func()) {
		started, over = c.Gate(), c.Gate()
		ctx, end := make(c.Context())
		g := started
		return ctx, func() { g.Wait(); end() }
	}
	ctx, end := begin()
	go end()
	_, err := conn.UnaryCall(ctx, request("x"))
	c.Err(name+": unary", err)
	over.Wait()
	ctx, end = begin()
	s, err := conn.FullDuplexCall(ctx)
	c.Err(name+": start", err)
	go end() // not before: a handler can start before grpc-go's client has returned the stream
	_, err = s.Recv()
	if why == context.Canceled || why == context.DeadlineExceeded {
		c.Err(name+": recv", err)
	} else {
		// In grpc-go two goroutines see the end. The text is that of the first.
		c.Note("%s: recv: an error of the context %v", name, strings.Contains(err.Error(), why.Error()) && status.Code(err) != codes.Unavailable)
	}
	c.Note("%s: send %v", name, s.Send(in("x")))
	over.Wait()
}
