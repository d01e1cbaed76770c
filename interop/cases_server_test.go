package interop

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"
)

// arrivals is a stats handler of a server that sends a value for each call that arrives.
type arrivals chan struct{}

func (arrivals) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (arrivals) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (arrivals) HandleConn(context.Context, stats.ConnStats)                       {}
func (h arrivals) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.InHeader); ok {
		h <- struct{}{}
	}
}

// A tagger is a stats handler that looks at the contexts of calls.
type tagger func(context.Context)

func (t tagger) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	t(ctx)
	return ctx
}
func (tagger) HandleRPC(context.Context, stats.RPCStats)                         {}
func (tagger) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (tagger) HandleConn(context.Context, stats.ConnStats)                       {}

// serverCases are about the lifetime of servers and streams: items 39 to 42.
var serverCases = []Case{
	{39, "panics recovered by interceptors", func(c *C) {
		conn := c.Start(Config{
			Service: &Service{
				Unary:  func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) { panic("unary") },
				Duplex: func(duplexServer) error { panic("stream") },
				Empty:  func(_ context.Context, m *pb.Empty) (*pb.Empty, error) { return m, nil },
			},
			UnaryServer: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
				defer func() {
					if r := recover(); r != nil {
						err = status.Errorf(codes.Internal, "recovered %v", r)
					}
				}()
				return next(ctx, req)
			}},
			StreamServer: []grpc.StreamServerInterceptor{func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
				defer func() {
					if r := recover(); r != nil {
						err = status.Errorf(codes.Internal, "recovered %v", r)
					}
				}()
				return next(srv, ss)
			}},
		})
		for range 2 {
			_, err := conn.UnaryCall(c.Context(), request("x"))
			c.Err("unary", err)
			s, err := conn.FullDuplexCall(c.Context())
			c.Err("start", err)
			_, err = s.Recv()
			c.Err("recv", err)
			_, err = conn.EmptyCall(c.Context(), &pb.Empty{})
			c.Err("another call", err)
		}
	}},

	{40, "freed by Close", func(c *C) { abandoned(c, func(conn *Conn, _ func(), _ grpc.ClientStream) { conn.Close() }) }},
	{40, "freed by a cancellation", func(c *C) { abandoned(c, func(_ *Conn, cancel func(), _ grpc.ClientStream) { cancel() }) }},
	{40, "freed by an error of RecvMsg", func(c *C) {
		abandoned(c, func(_ *Conn, _ func(), s grpc.ClientStream) { c.Code("recv", s.RecvMsg(new(string))) })
	}},
	{40, "freed by an error of SendMsg", func(c *C) {
		abandoned(c, func(_ *Conn, _ func(), s grpc.ClientStream) { c.Err("send", s.SendMsg("no message")) })
	}},
	{40, "by nothing else", func(c *C) {
		over, release := c.Gate(), c.Gate()
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
			defer over.Open()
			s.SendHeader(nil)
			s.Recv()
			release.Until(s.Context())
			return s.Context().Err()
		}}})
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		c.Err("close", s.CloseSend())
		_, err = s.Header()
		c.Err("header", err)
		c.Pause()
		c.Note("over: %v; stream context %v", over.IsOpen(), s.Context().Err())
		release.Open()
		_, err = s.Recv()
		c.Err("recv", err)
	}},
	{40, "by Header, where the end comes without one", func(c *C) {
		for _, end := range []error{nil, status.Error(codes.Aborted, "a")} {
			c.Note("--- end %v", end)
			conn := c.Start(Config{Service: &Service{
				Duplex: func(s duplexServer) error {
					s.SetTrailer(metadata.Pairs("t", "1"))
					return end
				},
				Input: func(inputServer) error { return end },
			}})
			finished := make(chan error, 9)
			note := grpc.OnFinish(func(err error) { finished <- err })
			duplex, err := conn.FullDuplexCall(c.Context(), note)
			c.Err("start", err)
			input, err := conn.StreamingInputCall(c.Context(), note)
			c.Err("start", err)
			for _, s := range []grpc.ClientStream{duplex, input} {
				md, err := s.Header()
				c.Err("header", err)
				c.MD("header", md)
				c.Err("finished", <-finished)
				c.Wait(s.Context().Done())
			}
			conn.Link.Close()
			_, err = duplex.Recv()
			c.Err("recv", err)
			c.MD("trailer", duplex.Trailer())
			_, err = input.CloseAndRecv()
			c.Err("recv", err)
			c.Pause()
			c.Note("finished again %d", len(finished))
		}
	}},
	{40, "freed by Close when its end has arrived but was not received", func(c *C) {
		for _, end := range []error{nil, status.Error(codes.Aborted, "a")} {
			for _, message := range []bool{false, true} {
				c.Note("--- end %v, a message before it %v", end, message)
				conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
					if message {
						s.Send(out("x"))
					}
					s.SetTrailer(metadata.Pairs("t", "1"))
					return end
				}}})
				finished := make(chan error, 9)
				s, err := conn.FullDuplexCall(c.Context(), grpc.OnFinish(func(err error) { finished <- err }))
				c.Err("start", err)
				for err == nil {
					err = s.Send(in("x"))
				}
				c.Err("send", err) // io.EOF: the stream has ended
				c.Note("finished so far %d; stream context %v", len(finished), s.Context().Err())
				c.Code("close", conn.Link.Close())
				select {
				case err := <-finished:
					c.Err("finished", err)
				case <-c.dead:
				}
				c.Wait(s.Context().Done())
				// What had arrived can still be received, and ends only once.
				for range 3 {
					m, err := s.Recv()
					c.Err("recv", err)
					c.Note("%q", m.GetPayload().GetBody())
				}
				c.MD("trailer", s.Trailer())
				c.Err("send", s.Send(in("x")))
				c.Err("close", s.CloseSend())
				conn.Stop()
				c.Pause()
				c.Note("finished again %d", len(finished))
			}
		}
	}},

	{41, "GracefulStop lets calls finish and refuses new ones", func(c *C) {
		started, release, stopped := c.Gate(), c.Gate(), c.Gate()
		h := c.Named("handler")
		conn := c.Start(Config{Service: &Service{
			Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				started.Open()
				release.Until(ctx)
				h.Note("%v", ctx.Err())
				return echo(ctx, m)
			},
		}})
		done := make(chan struct{})
		ctx, _ := c.Cancellable()
		go func() {
			defer close(done)
			_, err := conn.UnaryCall(ctx, request("x"))
			c.Named("running call").Err("unary", err)
		}()
		started.Wait()
		go func() { conn.GracefulStop(); stopped.Open() }()
		// New calls are refused as soon as the client has got the news.
		refused := false
		for !refused {
			_, err := conn.EmptyCall(c.Timeout(caseTimeout/2), &pb.Empty{})
			if refused = status.Code(err) != codes.Unimplemented; refused {
				c.Code("refused", err)
			}
		}
		c.Note("stopped: %v", stopped.IsOpen())
		release.Open()
		stopped.Wait()
		c.Wait(done)
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Code("after", err)
	}},
	{41, "GracefulStop waits for streams", func(c *C) {
		stopped := c.Gate()
		conn := c.Start(Config{Service: echoService()})
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		c.Err("send", s.Send(in("1")))
		_, err = s.Recv()
		c.Err("recv", err)
		go func() { conn.GracefulStop(); stopped.Open() }()
		c.Pause()
		c.Note("stopped: %v", stopped.IsOpen())
		c.Err("send", s.Send(in("2")))
		m, err := s.Recv()
		c.Err("recv", err)
		c.Note("%s", m.GetPayload().GetBody())
		c.Err("close", s.CloseSend())
		_, err = s.Recv()
		c.Err("end", err)
		stopped.Wait()
	}},
	{41, "GracefulStop waits for requests of which only a part has arrived", func(c *C) {
		stopped := c.Gate()
		arrived := make(arrivals, 4)
		conn := c.Start(Config{Service: echoService(), ServerStats: []stats.Handler{arrived}})
		var begun []grpc.ClientStream
		for _, method := range []string{unaryCall, inputCall, outputCall, duplexCall} {
			s, err := conn.NewStream(c.Context(), bidiDesc, method)
			c.Err("start", err)
			if method == inputCall {
				c.Err("send", s.SendMsg(&pb.StreamingInputCallRequest{Payload: payload("1")}))
			}
			Until(c.Context(), arrived)
			begun = append(begun, s)
		}
		go func() { conn.GracefulStop(); stopped.Open() }()
		c.Pause()
		c.Note("stopped: %v", stopped.IsOpen())
		rest := []proto.Message{request("x"), &pb.StreamingInputCallRequest{Payload: payload("23")}, in("y"), in("z")}
		replies := []proto.Message{new(pb.SimpleResponse), new(pb.StreamingInputCallResponse), new(pb.StreamingOutputCallResponse), new(pb.StreamingOutputCallResponse)}
		for i, s := range begun {
			c.Err("send", s.SendMsg(rest[i]))
			c.Err("close", s.CloseSend())
			c.Err("recv", s.RecvMsg(replies[i]))
			c.Msg("reply", replies[i])
			c.Err("end", s.RecvMsg(replies[i]))
		}
		stopped.Wait()
	}},
	{41, "Stop cancels running calls", func(c *C) {
		conn := endRunning(c, func(conn *Conn) { conn.Stop() })
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Code("after", err)
		conn.Stop()
		conn.GracefulStop()
	}},
	{41, "Close ends the client's calls", func(c *C) {
		conn := endRunning(c, func(conn *Conn) { c.Code("close", conn.Link.Close()) })
		_, err := conn.FullDuplexCall(c.Context())
		c.Err("after", err)
	}},
	{41, "Close releases callers whose handlers go on", func(c *C) {
		callersAreReleased(c, func(conn *Conn) { c.Code("close", conn.Link.Close()) })
	}},
	{41, "Stop releases callers whose handlers go on", func(c *C) {
		stopped := make(chan struct{})
		callersAreReleased(c, func(conn *Conn) {
			go func() { // Stop waits for a loop, if there is one
				defer close(stopped)
				conn.Stop()
			}()
		})
		c.Wait(stopped)
	}},

	{42, "what a unary handler and its interceptor find", func(c *C) {
		h := c.Named("handler")
		look := func(label string, ctx context.Context) {
			m, ok := grpc.Method(ctx)
			h.Note("%s: method %s %v", label, m, ok)
			st := grpc.ServerTransportStreamFromContext(ctx)
			h.Note("%s: transport stream %v", label, st != nil)
			if st != nil {
				h.Note("%s: its method %s", label, st.Method())
			}
			p, ok := peer.FromContext(ctx)
			h.Note("%s: peer %v, address %v", label, ok, ok && p.Addr != nil && p.Addr.Network() != "")
			h.Err(label+": header", grpc.SetHeader(ctx, metadata.Pairs("h", label)))
			h.Err(label+": trailer", grpc.SetTrailer(ctx, metadata.Pairs("t", label)))
		}
		svc := &Service{Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			look("handler", ctx)
			return echo(ctx, m)
		}}
		conn := c.Start(Config{Service: svc,
			UnaryServer: []grpc.UnaryServerInterceptor{
				func(ctx context.Context, req any, i *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
					h.Note("info %s, server is the service %v", i.FullMethod, i.Server == any(svc))
					look("outer before", ctx)
					m, err := next(context.WithValue(ctx, svc, "derived"), req)
					look("outer after", ctx)
					return m, err
				},
				func(ctx context.Context, req any, i *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
					h.Note("derived %v", ctx.Value(svc))
					m, err := next(ctx, req)
					h.Err("send header", grpc.SendHeader(ctx, metadata.Pairs("h", "inner")))
					return m, err
				},
			}})
		var header, trailer metadata.MD
		_, err := conn.UnaryCall(c.Context(), request("x"), grpc.Header(&header), grpc.Trailer(&trailer))
		c.Err("unary", err)
		c.MD("header", header)
		c.MD("trailer", trailer)
	}},
	{42, "what a stream handler and its interceptors find", func(c *C) {
		h := c.Named("handler")
		svc := &Service{
			Duplex: func(s duplexServer) error {
				ctx := s.Context()
				m, ok := grpc.Method(ctx)
				h.Note("method %s %v", m, ok)
				m, ok = grpc.MethodFromServerStream(s)
				h.Note("method %s %v", m, ok)
				p, ok := peer.FromContext(ctx)
				h.Note("peer %v, address %v", ok, ok && p.Addr != nil)
				h.Err("by context", grpc.SetHeader(ctx, metadata.Pairs("h", "context")))
				h.Err("by stream", s.SetHeader(metadata.Pairs("h", "stream")))
				h.Err("trailer by context", grpc.SetTrailer(ctx, metadata.Pairs("t", "context")))
				s.SetTrailer(metadata.Pairs("t", "stream"))
				h.Err("send by context", grpc.SendHeader(ctx, metadata.Pairs("h", "sent")))
				h.Err("send by stream", s.SendHeader(nil))
				return nil
			},
			Output: func(*pb.StreamingOutputCallRequest, outputServer) error { return nil },
			Input:  func(s inputServer) error { return s.SendAndClose(&pb.StreamingInputCallResponse{}) },
		}
		conn := c.Start(Config{Service: svc, StreamServer: []grpc.StreamServerInterceptor{
			func(srv any, ss grpc.ServerStream, i *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				h.Note("info %s client %v server %v, service %v", i.FullMethod, i.IsClientStream, i.IsServerStream, srv == any(svc))
				return next(srv, ss)
			},
			func(srv any, ss grpc.ServerStream, i *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				h.Note("inner")
				return next(srv, ss)
			},
		}})
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		md, err := s.Header()
		c.Err("header", err)
		c.MD("header", md)
		_, err = s.Recv()
		c.Err("recv", err)
		c.MD("trailer", s.Trailer())
		p, ok := peer.FromContext(s.Context())
		c.Note("client's peer %v, address %v", ok, ok && p.Addr != nil)
		o, err := conn.StreamingOutputCall(c.Context(), in("x"))
		c.Err("start", err)
		_, err = o.Recv()
		c.Err("recv", err)
		i, err := conn.StreamingInputCall(c.Context())
		c.Err("start", err)
		_, err = i.CloseAndRecv()
		c.Err("recv", err)
	}},
	{42, "a tap handle", func(c *C) {
		h := c.Named("handler")
		type key struct{}
		var verdict error
		var stop bool
		look := func(where string, ctx context.Context) { h.Note("%s finds %v", where, ctx.Value(key{})) }
		conn := c.Start(Config{
			ServerTap: func(ctx context.Context, info *tap.Info) (context.Context, error) {
				md, _ := metadata.FromIncomingContext(ctx)
				_, isPeer := peer.FromContext(ctx)
				_, bounded := ctx.Deadline()
				h.Note("asked for %s with %v, %v and %v, %v, %v", info.FullMethodName, info.Header["k"], info.Header["k-bin"], md["k"], isPeer, bounded)
				h.Note("content-type %v, authority %v", info.Header["content-type"], len(info.Header[":authority"]))
				if stop {
					over, cancel := context.WithCancel(ctx)
					cancel()
					return over, nil
				}
				return context.WithValue(ctx, key{}, "the tap's"), verdict
			},
			ServerStats: []stats.Handler{tagger(func(ctx context.Context) { look("a stats handler", ctx) })},
			UnaryServer: []grpc.UnaryServerInterceptor{func(ctx context.Context, in any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				look("an interceptor", ctx)
				return next(ctx, in)
			}},
			Service: &Service{
				Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
					look("a handler", ctx)
					h.Err("header", grpc.SetHeader(ctx, metadata.Pairs("h", "v")))
					return echo(ctx, m)
				},
				Duplex: func(s duplexServer) error {
					look("a stream's handler", s.Context())
					return nil
				},
			},
		})
		ctx := metadata.AppendToOutgoingContext(c.Context(), "k", "v", "k-bin", "\x00\xff")
		calls := func() {
			var header, trailer metadata.MD
			_, err := conn.UnaryCall(ctx, request("x"), grpc.Header(&header), grpc.Trailer(&trailer))
			c.Err("unary", err)
			c.Note("%v %v", header["h"], trailer["h"])
			d, err := conn.FullDuplexCall(ctx)
			c.Err("stream", err)
			_, err = d.Recv()
			c.Err("its end", err)
			c.Err("unknown", conn.Invoke(ctx, "/no.Service/Method", request("x"), new(pb.SimpleResponse)))
		}
		calls()
		st, _ := status.New(codes.ResourceExhausted, "too many").WithDetails(request("d"))
		for _, verdict = range []error{errPlain, st.Err(), fmt.Errorf("wrapped: %w", st.Err()), context.Canceled} {
			calls()
		}
		verdict, stop = nil, true
		calls()
	}},
	{42, "client interceptors", func(c *C) {
		conn := c.Start(Config{
			Service: echoService(),
			UnaryClient: []grpc.UnaryClientInterceptor{
				func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					c.Note("outer %s, %d options", method, len(opts))
					err := next(ctx, method, req, reply, cc, opts...)
					c.Note("outer again %s", reply.(*pb.SimpleResponse).GetPayload().GetBody())
					return err
				},
				func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					c.Note("inner")
					c.Err("first", next(ctx, method, req, reply, cc, opts...))
					return next(ctx, method, request("second"), reply, cc, opts...)
				},
			},
			StreamClient: []grpc.StreamClientInterceptor{
				func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
					c.Note("outer %s client %v server %v", method, desc.ClientStreams, desc.ServerStreams)
					return next(ctx, desc, cc, method, opts...)
				},
			},
		})
		m, err := conn.UnaryCall(c.Context(), request("first"))
		c.Err("unary", err)
		c.Note("%s", m.GetPayload().GetBody())
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		c.Err("send", s.Send(in("x")))
		_, err = s.Recv()
		c.Err("recv", err)
	}},
	{42, "outside a handler, and after it", func(c *C) {
		c.Err("header", grpc.SetHeader(context.Background(), metadata.Pairs("k", "v")))
		c.Err("trailer", grpc.SetTrailer(context.Background(), metadata.Pairs("k", "v")))
		_, ok := grpc.Method(context.Background())
		c.Note("%v", ok)
		ctxs := make(chan context.Context, 1)
		conn := c.Start(Config{Service: &Service{Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			ctxs <- ctx
			return echo(ctx, m)
		}}})
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
		ctx := <-ctxs
		c.Wait(ctx.Done())
		c.Err("set header late", grpc.SetHeader(ctx, metadata.Pairs("k", "v")))
		c.Err("send header late", grpc.SendHeader(ctx, metadata.Pairs("k", "v")))
		c.Err("set trailer late", grpc.SetTrailer(ctx, metadata.Pairs("k", "v")))
		m, ok := grpc.Method(ctx)
		c.Note("%s %v", m, ok)
	}},
	{42, "many calls at once", func(c *C) {
		conn := c.Start(Config{Service: &Service{Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			grpc.SetHeader(ctx, metadata.Pairs("echo", string(m.Payload.Body)))
			return echo(ctx, m)
		}}})
		wrong := make(chan int, 20)
		for g := range 20 {
			go func() {
				n := 0
				for i := range 20 {
					text := fmt.Sprintf("%d/%d", g, i)
					var header metadata.MD
					m, err := conn.UnaryCall(c.Context(), request(text), grpc.Header(&header))
					if err != nil || string(m.Payload.Body) != text || len(header["echo"]) != 1 || header["echo"][0] != text {
						n++
					}
				}
				wrong <- n
			}()
		}
		sum := 0
		for range 20 {
			sum += <-wrong
		}
		c.Note("wrong: %d", sum)
	}},
}

// abandoned opens a stream, lets free act on it, and waits until its handler has seen the
// end and OnFinish was called.
func abandoned(c *C, free func(conn *Conn, cancel func(), s grpc.ClientStream)) {
	h := c.Named("handler")
	started, over := c.Gate(), c.Gate()
	conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
		defer over.Open()
		s.Send(out("x"))
		started.Open()
		Until(s.Context(), s.Context().Done())
		h.Note("%v", s.Context().Err())
		return nil
	}}})
	ctx, cancel := c.Cancellable()
	finished := make(chan error, 9)
	s, err := conn.FullDuplexCall(ctx, grpc.OnFinish(func(err error) { finished <- err }))
	c.Err("start", err)
	started.Wait()
	free(conn, cancel, s)
	over.Wait()
	select {
	case err := <-finished:
		c.Code("finished", err)
	case <-c.dead:
	}
	c.Wait(s.Context().Done())
	c.Note("stream context %v", s.Context().Err())
}

// endRunning notes what a unary call and a stream, and their handlers, get when end is called.
func endRunning(c *C, end func(*Conn)) *Conn {
	h := c.Named("handler")
	started, over := make(chan struct{}, 2), make(chan struct{}, 2)
	run := func(ctx context.Context) error {
		started <- struct{}{}
		Until(ctx, ctx.Done())
		h.Note("%v", ctx.Err())
		over <- struct{}{}
		return ctx.Err()
	}
	conn := c.Start(Config{Service: &Service{
		Unary:  func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) { return nil, run(ctx) },
		Duplex: func(s duplexServer) error { return run(s.Context()) },
	}})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Named("unary").Code("unary", err)
	}()
	s, err := conn.FullDuplexCall(c.Context())
	c.Err("start", err)
	c.Wait(started)
	c.Wait(started)
	end(conn)
	_, err = s.Recv()
	c.Code("recv", err)
	c.Wait(done)
	c.Wait(over)
	c.Wait(over)
	return conn
}

// callersAreReleased notes what callers get when end is called, if handlers return only
// after their callers.
func callersAreReleased(c *C, end func(*Conn)) {
	c.CallerLeaves()
	h := c.Named("handler")
	release := c.Gate()
	started, over := make(chan struct{}, 2), make(chan struct{}, 2)
	run := func(ctx context.Context) {
		started <- struct{}{}
		Until(ctx, ctx.Done())
		h.Note("%v", ctx.Err())
		over <- struct{}{}
		release.Until(ctx)
	}
	conn := c.Start(Config{Service: &Service{
		Unary:  func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) { run(ctx); return nil, nil },
		Duplex: func(s duplexServer) error { run(s.Context()); return nil },
	}})
	ctx, cancel := c.Cancellable()
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := conn.UnaryCall(ctx, request("x"))
		c.Named("unary").Code("unary", err)
	}()
	s, err := conn.FullDuplexCall(ctx)
	c.Err("start", err)
	c.Wait(started)
	c.Wait(started)
	end(conn)
	_, err = s.Recv()
	c.Code("recv", err)
	c.Wait(done)
	c.Wait(over)
	c.Wait(over)
	release.Open()
}
