package interop

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// cancelCases are about deadlines, cancellation and the ownership of messages: items 24 to
// 26.
var cancelCases = []Case{
	{24, "a deadline reaches the handler", func(c *C) {
		h := c.Named("handler")
		var want time.Time
		look := func(ctx context.Context) {
			got, ok := ctx.Deadline()
			h.Note("deadline %v, near the client's %v, err %v", ok, math.Abs(got.Sub(want).Seconds()) < 2, ctx.Err())
		}
		conn := c.Start(Config{Service: &Service{
			Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				look(ctx)
				return echo(ctx, m)
			},
			Duplex: func(s duplexServer) error { look(s.Context()); return nil },
		}})
		for _, d := range []time.Duration{time.Minute, 100 * time.Hour} {
			ctx := c.Timeout(d)
			want, _ = ctx.Deadline()
			_, err := conn.UnaryCall(ctx, request("x"))
			c.Err("unary", err)
			s, err := conn.FullDuplexCall(ctx)
			c.Err("start", err)
			_, err = s.Recv()
			c.Err("recv", err)
		}
		want = time.Time{}
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("without", err)
	}},
	{24, "a deadline that passes", func(c *C) {
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
		_, err := conn.UnaryCall(c.Timeout(50*time.Millisecond), request("x"))
		c.Code("unary", err)
		s, err := conn.FullDuplexCall(c.Timeout(300 * time.Millisecond))
		c.Err("start", err)
		_, err = s.Recv()
		c.Code("recv", err)
	}},
	{24, "a cancellation reaches a unary handler", func(c *C) {
		h := c.Named("handler")
		started, over := c.Gate(), c.Gate()
		conn := c.Start(Config{Service: &Service{Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			defer over.Open()
			started.Open()
			Until(ctx, ctx.Done())
			h.Note("%v, is Canceled %v, cause %v", ctx.Err(), ctx.Err() == context.Canceled, context.Cause(ctx))
			return nil, ctx.Err()
		}}})
		ctx, cancel := context.WithCancelCause(c.Context())
		go func() { started.Wait(); cancel(errors.New("the client's cause")) }()
		_, err := conn.UnaryCall(ctx, request("x"))
		c.Err("unary", err)
		over.Wait()
	}},
	{24, "a cancellation reaches handlers that only poll for it", func(c *C) {
		h := c.Named("handler")
		started, over := c.Gate(), c.Gate()
		// These handlers must not call Done. If a handler runs on its caller's goroutine,
		// only Err makes its context look at the caller's.
		poll := func(ctx context.Context) error {
			for ctx.Err() == nil {
				select {
				case <-c.dead:
					return errors.New("it never came")
				case <-time.After(100 * time.Microsecond):
				}
			}
			return ctx.Err()
		}
		look := func(ctx context.Context) error {
			h.Note("at first %v", ctx.Err())
			started.Open()
			err := poll(ctx)
			h.Note("is Canceled %v; again %v; cause %v", err == context.Canceled, ctx.Err(), context.Cause(ctx))
			return err
		}
		conn := c.Start(Config{
			Service: &Service{
				Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
					defer over.Open()
					h.Note("unary, context %v", ctx.Value(h))
					return nil, look(ctx)
				},
				Duplex: func(s duplexServer) error {
					defer over.Open()
					h.Note("stream")
					return look(s.Context())
				},
				// The server can also learn of the deadline from the client's cancellation,
				// so the context's error depends on timing.
				Empty: func(ctx context.Context, m *pb.Empty) (*pb.Empty, error) { return m, poll(ctx) },
			},
			UnaryServer: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				return next(context.WithValue(ctx, h, "derived"), req)
			}},
		})
		cancelled := func() context.Context {
			ctx, cancel := c.Cancellable()
			seen := c.Gate()
			started, over = seen, c.Gate()
			go func() { seen.Wait(); cancel() }()
			return ctx
		}
		_, err := conn.UnaryCall(cancelled(), request("x"))
		c.Err("unary", err)
		over.Wait()
		s, err := conn.FullDuplexCall(cancelled())
		c.Err("start", err)
		_, err = s.Recv()
		c.Err("recv", err)
		over.Wait()
		_, err = conn.EmptyCall(c.Timeout(50*time.Millisecond), &pb.Empty{})
		c.Code("deadline", err)
	}},
	{24, "the caller does not wait for a handler that ignores its context", func(c *C) {
		c.CallerLeaves()
		started, release := c.Gate(), c.Gate()
		conn := c.Start(Config{Service: &Service{
			Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				started.Open()
				release.Until(ctx)
				return reply("late"), nil
			},
			Duplex: func(s duplexServer) error { started.Open(); release.Until(s.Context()); return nil },
		}})
		// An environment may run handlers on the caller's goroutine only if the context is
		// never done, so not here.
		ctx, cancel := c.Cancellable()
		go func() { started.Wait(); cancel() }()
		got := reply("before")
		err := conn.Invoke(ctx, unaryCall, request("x"), got)
		c.Err("unary", err)
		c.Msg("reply", got)
		_, err = conn.UnaryCall(c.Timeout(20*time.Millisecond), request("x"))
		c.Code("unary", err)
		s, err := conn.FullDuplexCall(c.Timeout(300 * time.Millisecond))
		c.Err("start", err)
		_, err = s.Recv()
		c.Code("recv", err)
		release.Open()
	}},
	{24, "the caller does not wait for the server's codec, which may want a lock that it holds", func(c *C) {
		c.CodecsApart()
		for _, name := range []string{"marshal", "unmarshal"} {
			codec := &lockingCodec{marshals: name == "marshal"}
			conn := c.Start(Config{ServerCodec: codec, Service: &Service{
				Unary: echo,
				Duplex: func(s duplexServer) error {
					_, err := s.Recv()
					if err != nil {
						return err
					}
					return s.Send(out("x"))
				},
			}})
			begin := func() context.Context {
				ctx, cancel := c.Cancellable()
				codec.mu.Lock()
				wants := &lockWanted{wanted: c.Gate(), had: c.Gate()}
				codec.wants.Store(wants)
				go func() { wants.wanted.Wait(); cancel() }()
				return ctx
			}
			end := func() {
				codec.mu.Unlock()
				codec.wants.Load().had.Wait() // on a loop this holds up the next call
			}
			got := reply("untouched")
			c.Err(name+": unary", conn.Invoke(begin(), unaryCall, request("x"), got))
			end()
			c.Note("reply %s", got.Payload.Body)
			s, err := conn.FullDuplexCall(begin())
			c.Err(name+": start", err)
			c.Err(name+": send", s.Send(in("x")))
			_, err = s.Recv()
			c.Err(name+": recv", err)
			end()
		}
	}},
	{24, "a cancellation in the middle of a stream", func(c *C) {
		h := c.Named("handler")
		over := c.Gate()
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
			defer over.Open()
			s.Send(out("1"))
			_, err := s.Recv()
			h.Err("recv", err)
			h.Note("%v", s.Context().Err())
			return err
		}}})
		ctx, cancel := c.Cancellable()
		s, err := conn.FullDuplexCall(ctx)
		c.Err("start", err)
		_, err = s.Recv()
		c.Err("recv", err)
		cancel()
		_, err = s.Recv()
		c.Err("recv", err)
		_, err = s.Recv()
		c.Err("recv", err)
		c.Err("send", s.Send(in("x")))
		c.Err("close", s.CloseSend())
		c.Note("stream context %v", s.Context().Err())
		over.Wait()
	}},
	{24, "a cancellation wakes a blocked receiver, sender and header", func(c *C) {
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error { Until(s.Context(), s.Context().Done()); return nil }}})
		ctx, cancel := c.Cancellable()
		receiving, err := conn.FullDuplexCall(ctx)
		c.Err("start", err)
		sending, err := conn.FullDuplexCall(ctx)
		c.Err("start", err)
		waiting, err := conn.FullDuplexCall(ctx)
		c.Err("start", err)
		done := make(chan struct{})
		go func() {
			defer func() { done <- struct{}{} }()
			_, err := receiving.Recv()
			c.Named("receiver").Err("recv", err)
		}()
		go func() {
			defer func() { done <- struct{}{} }()
			var err error
			for err == nil {
				err = sending.Send(&pb.StreamingOutputCallRequest{Payload: &pb.Payload{Body: make([]byte, 10000)}})
			}
			c.Named("sender").Err("send", err)
			_, err = sending.Recv()
			c.Named("sender").Err("recv", err)
		}()
		go func() {
			defer func() { done <- struct{}{} }()
			md, err := waiting.Header()
			c.Named("waiter").Err("header", err)
			c.Named("waiter").MD("header", md)
			_, err = waiting.Recv()
			c.Named("waiter").Err("recv", err)
		}()
		c.Pause()
		cancel()
		for range 3 {
			c.Wait(done)
		}
	}},
	{24, "the handler's own context errors are not the client's", func(c *C) {
		conn := c.Start(Config{Service: &Service{Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			Until(ctx, ctx.Done())
			return nil, ctx.Err()
		}}})
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
		c.Note("is DeadlineExceeded %v", errors.Is(err, context.DeadlineExceeded))
	}},
	{24, "a method timeout from the service config", func(c *C) {
		h := c.Named("handler")
		conn := c.Start(Config{
			ServiceConfig: `{"methodConfig":[{"name":[{"service":"grpc.testing.TestService"}],"timeout":"60s"},
				{"name":[{"service":"grpc.testing.TestService","method":"UnaryCall"}],"timeout":"0.02s"}]}`,
			Service: &Service{
				Empty: func(ctx context.Context, m *pb.Empty) (*pb.Empty, error) {
					_, ok := ctx.Deadline()
					h.Note("deadline %v", ok)
					return m, nil
				},
				Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
					Until(ctx, ctx.Done())
					return nil, ctx.Err()
				},
			}})
		_, err := conn.EmptyCall(c.Context(), &pb.Empty{})
		c.Err("empty", err)
		_, err = conn.UnaryCall(c.Context(), request("x"))
		c.Code("unary", err)
	}},

	{25, "an early cancel, and both sides go on with their messages", func(c *C) {
		c.CallerLeaves()
		h := c.Named("handler")
		started, changed, over := c.Gate(), c.Gate(), c.Gate()
		conn := c.Start(Config{Service: &Service{Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			defer over.Open()
			started.Open()
			changed.Until(ctx)
			h.Note("request %s", m.Payload.Body)
			return reply("late reply"), nil
		}}})
		ctx, cancel := c.Cancellable()
		req, got := request("original"), reply("untouched")
		go func() { started.Wait(); cancel() }()
		c.Err("invoke", conn.Invoke(ctx, unaryCall, req, got))
		for i := range req.Payload.Body {
			req.Payload.Body[i] = 'X'
		}
		req.Payload = nil
		changed.Open()
		over.Wait()
		for range 20 {
			got.GetPayload().Body = append(got.GetPayload().Body, 'x') // a race, if another goroutine writes it
		}
		c.Note("reply %s", got.Payload.Body)
	}},
	{25, "a request taken after the caller has left", func(c *C) {
		c.CallerLeaves()
		h := c.Named("handler")
		started, changed, over := c.Gate(), c.Gate(), c.Gate()
		raw := c.Raw("raw").Unary("Call", func(ctx context.Context, dec func(any) error) (any, error) {
			defer over.Open()
			started.Open()
			changed.Until(ctx)
			m := &pb.SimpleRequest{}
			// In process the request may be gone with its caller, but it must not have
			// changed.
			err := dec(m)
			h.Note("original or refused: %v", err != nil || string(m.GetPayload().GetBody()) == "original")
			return reply("late"), err
		})
		conn := c.Start(Config{Register: []func(grpc.ServiceRegistrar){raw.Register}})
		ctx, cancel := c.Cancellable()
		req := request("original")
		go func() { started.Wait(); cancel() }()
		c.Err("invoke", conn.Invoke(ctx, "/raw/Call", req, &pb.SimpleResponse{}))
		copy(req.Payload.Body, "XXXXXXXX")
		changed.Open()
		over.Wait()
	}},
	{25, "many calls cancelled at many moments", func(c *C) {
		conn := c.Start(Config{Service: echoService()})
		odd := 0
		req, got := request("original"), &pb.SimpleResponse{}
		for i := range 300 {
			ctx, cancel := context.WithCancel(c.Context())
			go func() {
				for range i % 30 {
					time.Sleep(time.Microsecond)
				}
				cancel()
			}()
			err := conn.Invoke(ctx, unaryCall, req, got)
			if code := status.Code(err); code != codes.OK && code != codes.Canceled {
				odd++
			}
			if err == nil && string(got.GetPayload().GetBody()) != "original" {
				odd++
			}
			// The caller owns all of it again.
			req.Payload = &pb.Payload{Body: []byte("original")}
			got.Payload = &pb.Payload{Body: []byte(fmt.Sprint(i))}
			cancel()
		}
		c.Note("odd results: %d", odd)
	}},
	{25, "a stream's message is captured by SendMsg", func(c *C) {
		h := c.Named("handler")
		changed := c.Gate()
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
			changed.Until(s.Context())
			for range 3 {
				m, err := s.Recv()
				h.Err("recv", err)
				h.Note("%s", m.GetPayload().GetBody())
			}
			return nil
		}}})
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		m := in("first")
		c.Err("send", s.Send(m))
		copy(m.Payload.Body, "XXXXX")
		m.Payload = payload("second")
		c.Err("send", s.Send(m))
		m.Payload.Body = []byte("third")
		c.Err("send", s.Send(m))
		m.Reset()
		changed.Open()
		_, err = s.Recv()
		c.Err("recv", err)
	}},
	{25, "RecvMsg's message is the caller's after a cancellation", func(c *C) {
		over, ready, cancelled := c.Gate(), c.Gate(), c.Gate()
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
			defer over.Open()
			ready.Open()
			cancelled.Until(s.Context())
			s.Send(out("late"))
			return nil
		}}})
		ctx, cancel := c.Cancellable()
		s, err := conn.FullDuplexCall(ctx)
		c.Err("start", err)
		go func() { ready.Wait(); cancel() }()
		m := out("mine")
		c.Err("recv", s.RecvMsg(m))
		cancelled.Open()
		for range 20 {
			m.Payload.Body = append(m.Payload.Body[:0], "mine"...)
		}
		over.Wait()
		c.Note("%s", m.Payload.Body)
	}},
	{25, "metadata is captured too", func(c *C) {
		c.CallerLeaves()
		h := c.Named("handler")
		started, changed, over := c.Gate(), c.Gate(), c.Gate()
		conn := c.Start(Config{Service: &Service{Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			defer over.Open()
			started.Open()
			changed.Until(ctx)
			md, _ := metadata.FromIncomingContext(ctx)
			h.MD("incoming", md)
			return reply("x"), nil
		}}})
		md := metadata.Pairs("k", "v")
		ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(c.Context(), md))
		go func() { started.Wait(); cancel() }()
		_, err := conn.UnaryCall(ctx, request("x"))
		c.Err("unary", err)
		md["k"][0] = "changed"
		md["more"] = []string{"1"}
		changed.Open()
		over.Wait()
	}},

	{26, "a server that keeps and changes what it got and gave", func(c *C) {
		h := c.Named("handler")
		var kept []*pb.SimpleRequest
		cached := reply("cached")
		conn := c.Start(Config{Service: &Service{Unary: func(_ context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			for _, k := range kept {
				h.Note("kept %s", k.Payload.Body)
			}
			kept = append(kept, m)
			h.Note("cached %s", cached.Payload.Body)
			m.Payload.Body = append(m.Payload.Body, '!')
			m.ResponseSize = 99
			return cached, nil
		}}})
		req := request("same")
		for range 3 {
			got := &pb.SimpleResponse{}
			c.Err("invoke", conn.Invoke(c.Context(), unaryCall, req, got))
			c.Note("reply %s; request %s %d", got.Payload.Body, req.Payload.Body, req.ResponseSize)
			copy(got.Payload.Body, "XXXXXX")
			req.Payload.Body[0]++
		}
	}},
	{26, "streams that reuse one message", func(c *C) {
		h := c.Named("handler")
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
			m := out("0")
			var all []*pb.StreamingOutputCallRequest
			for i := range 5 {
				m.Payload.Body[0] = byte('0' + i)
				s.Send(m)
			}
			for {
				r, err := s.Recv()
				if err != nil {
					break
				}
				all = append(all, r)
			}
			for _, r := range all {
				h.Note("%s", r.Payload.Body)
			}
			return nil
		}}})
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		m := in("a")
		for i := range 5 {
			m.Payload.Body[0] = byte('a' + i)
			c.Err("send", s.Send(m))
		}
		c.Err("close", s.CloseSend())
		var all []*pb.StreamingOutputCallResponse
		for {
			r, err := s.Recv()
			if err != nil {
				c.Err("end", err)
				break
			}
			all = append(all, r)
		}
		for _, r := range all {
			c.Note("%s", r.Payload.Body)
		}
	}},
	{26, "a received message replaces what was there, and shares nothing with the next", func(c *C) {
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
			s.Send(out("first"))
			s.Send(&pb.StreamingOutputCallResponse{})
			s.Send(out("third"))
			return nil
		}, Unary: func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			return &pb.SimpleResponse{Username: "u"}, nil
		}}})
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		m := out("left over")
		var bodies [][]byte
		for range 3 {
			c.Err("recv", s.RecvMsg(m))
			c.Msg("got", m)
			bodies = append(bodies, m.GetPayload().GetBody())
		}
		c.Note("%q", bodies)
		got := &pb.SimpleResponse{Payload: payload("left over"), Hostname: "left over", Username: "left over"}
		c.Err("invoke", conn.Invoke(c.Context(), unaryCall, request("x"), got))
		c.Msg("got", got)
	}},
	{26, "an interceptor's copies", func(c *C) {
		h := c.Named("handler")
		conn := c.Start(Config{
			Service: &Service{Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				h.Note("%s", m.Payload.Body)
				return echo(ctx, m)
			}},
			UnaryClient: []grpc.UnaryClientInterceptor{func(ctx context.Context, method string, req, rep any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				err := invoker(ctx, method, request("replaced"), rep, cc, opts...)
				rep.(*pb.SimpleResponse).Username = "added"
				return err
			}},
			UnaryServer: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				req.(*pb.SimpleRequest).Payload.Body[0] = 'R'
				m, err := next(ctx, req)
				m.(*pb.SimpleResponse).Hostname = "server"
				return m, err
			}},
		})
		req := request("mine")
		m, err := conn.UnaryCall(c.Context(), req)
		c.Err("unary", err)
		c.Msg("reply", m)
		c.Msg("request", req)
	}},
}

// lockingCodec is protobuf's codec, and takes a lock to marshal or to unmarshal.
type lockingCodec struct {
	mu       sync.Mutex
	marshals bool // lock to marshal, not to unmarshal; false for the reverse
	wants    atomic.Pointer[lockWanted]
}

// lockWanted has the gates that open when the codec waits for the lock, and when it has had
// it.
type lockWanted struct{ wanted, had *Gate }

func (l *lockingCodec) lock(marshals bool) {
	if marshals == l.marshals {
		w := l.wants.Load()
		w.wanted.Open()
		l.mu.Lock()
		w.had.Open()
		l.mu.Unlock()
	}
}

func (*lockingCodec) Name() string { return "proto" }

func (l *lockingCodec) Marshal(v any) (mem.BufferSlice, error) {
	l.lock(true)
	return encoding.GetCodecV2("proto").Marshal(v)
}

func (l *lockingCodec) Unmarshal(data mem.BufferSlice, v any) error {
	l.lock(false)
	return encoding.GetCodecV2("proto").Unmarshal(data, v)
}
