package interop

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// messageCases are about sending and receiving: items 11 to 20, and 44.
var messageCases = []Case{
	{11, "SendMsg after the server ended", func(c *C) {
		var end error
		conn := c.Start(Config{Service: &Service{
			Duplex: func(s duplexServer) error { return end },
			Input: func(s inputServer) error {
				if end != nil {
					return end
				}
				return s.SendAndClose(&pb.StreamingInputCallResponse{AggregatedPayloadSize: 7})
			},
		}})
		for _, end = range []error{nil, status.Error(codes.NotFound, "gone")} {
			s, err := conn.FullDuplexCall(c.Context())
			c.Err("bidi", err)
			for err == nil {
				err = s.Send(in("x"))
			}
			c.Err("send", err)
			c.Err("send again", s.Send(in("x")))
			c.Err("close", s.CloseSend())
			_, err = s.Recv()
			c.Err("recv", err)

			i, err := conn.StreamingInputCall(c.Context())
			c.Err("client stream", err)
			for err == nil {
				err = i.Send(&pb.StreamingInputCallRequest{})
			}
			c.Err("send", err)
			m, err := i.CloseAndRecv()
			c.Err("recv", err)
			c.Note("%d", m.GetAggregatedPayloadSize())
		}
	}},
	{11, "SendMsg after the end was received", func(c *C) {
		conn := c.Start(Config{Service: &Service{
			Duplex: func(s duplexServer) error { return status.Error(codes.Aborted, "a") },
			Output: func(*pb.StreamingOutputCallRequest, outputServer) error { return nil },
		}})
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		_, err = s.Recv()
		c.Err("recv", err)
		c.Err("send", s.Send(in("x")))
		c.Err("close", s.CloseSend())
		_, err = s.Recv()
		c.Err("recv", err)
	}},
	{11, "a unary request to a server that does not wait for it", func(c *C) {
		raw := c.Raw("raw").Stream("Refuse", bidiDesc, func(grpc.ServerStream) error { return status.Error(codes.ResourceExhausted, "busy") })
		conn := c.Start(Config{Register: []func(grpc.ServiceRegistrar){raw.Register}})
		for name, desc := range descs() {
			c.Note("--- %s", name)
			s, err := conn.NewStream(c.Context(), desc, "/raw/Refuse")
			c.Err("start", err)
			_, err = s.Header() // waits for the server's end
			c.Err("header", err)
			c.Err("send", s.SendMsg(&pb.Empty{}))
			c.Err("recv", s.RecvMsg(&pb.Empty{}))
		}
		c.Err("invoke", conn.Invoke(c.Context(), "/raw/Refuse", &pb.Empty{}, &pb.Empty{}))
	}},

	{12, "SendMsg after CloseSend, and a second SendMsg", func(c *C) {
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error { Until(s.Context(), s.Context().Done()); return nil }}})
		for name, desc := range descs() {
			c.Note("--- %s", name)
			s, err := conn.NewStream(c.Context(), desc, duplexCall)
			c.Err("start", err)
			c.Err("send", s.SendMsg(in("1")))
			if desc.ClientStreams {
				c.Err("close", s.CloseSend())
			}
			c.Err("send", s.SendMsg(in("2")))
			c.Err("recv", s.RecvMsg(&pb.StreamingOutputCallResponse{}))
			c.Err("send", s.SendMsg(in("3")))
		}
	}},
	{12, "the call is over afterwards", func(c *C) {
		started, over := c.Gate(), c.Gate()
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
			started.Open()
			Until(s.Context(), s.Context().Done())
			over.Open()
			return s.Context().Err()
		}}})
		var ended []string
		s, err := conn.FullDuplexCall(c.Context(), grpc.OnFinish(func(err error) { ended = append(ended, status.Code(err).String()) }))
		c.Err("start", err)
		started.Wait()
		c.Err("close", s.CloseSend())
		c.Err("send", s.Send(in("x")))
		over.Wait()
		c.Note("finished with %q", ended)
		c.Note("stream context: %v", s.Context().Err())
	}},

	{12, "OnFinish asks for the header", func(c *C) {
		started, over := c.Gate(), c.Gate()
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
			started.Open()
			Until(s.Context(), s.Context().Done())
			return s.Context().Err()
		}}})
		ctx, cancel := c.Cancellable()
		var md metadata.MD
		var ended, headerErr error
		var s grpc.BidiStreamingClient[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]
		s, err := conn.FullDuplexCall(ctx, grpc.OnFinish(func(err error) {
			ended = err
			md, headerErr = s.Header()
			over.Open()
		}))
		c.Err("start", err)
		started.Wait()
		cancel()
		_, err = s.Recv()
		c.Err("recv", err)
		over.Wait()
		c.Code("finished", ended)
		c.Note("header %v, %v", md, headerErr)
	}},

	{13, "CloseSend again and again", func(c *C) {
		conn := c.Start(Config{Service: echoService()})
		for name, desc := range descs() {
			c.Note("--- %s", name)
			s, err := conn.NewStream(c.Context(), desc, duplexCall)
			c.Err("start", err)
			c.Err("send", s.SendMsg(in("1")))
			c.Err("close", s.CloseSend())
			c.Err("close", s.CloseSend())
			for i := 0; i < 3 && err == nil; i++ {
				err = s.RecvMsg(&pb.StreamingOutputCallResponse{})
				c.Err("recv", err)
				if !desc.ServerStreams {
					break
				}
			}
			c.Err("close", s.CloseSend())
		}
	}},
	{13, "CloseSend on a stream that failed", func(c *C) {
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error { return status.Error(codes.Aborted, "a") }}})
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		_, err = s.Recv()
		c.Err("recv", err)
		c.Err("close", s.CloseSend())
		c.Err("close", s.CloseSend())
	}},
	{13, "CloseSend after a cancellation", func(c *C) {
		started, over := c.Gate(), c.Gate()
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
			started.Open()
			Until(s.Context(), s.Context().Done())
			over.Open()
			return nil
		}}})
		ctx, cancel := c.Cancellable()
		s, err := conn.FullDuplexCall(ctx)
		c.Err("start", err)
		started.Wait()
		cancel()
		over.Wait()
		c.Err("close", s.CloseSend())
		_, err = s.Recv()
		c.Err("recv", err)
		c.Err("close", s.CloseSend())
	}},

	{14, "nil from the client", func(c *C) {
		h := c.Named("handler")
		conn := c.Start(Config{Service: &Service{
			Unary: func(_ context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				h.Note("nil %v", m == nil)
				h.Msg("got", m)
				return reply("x"), nil
			},
			Duplex: func(s duplexServer) error {
				for {
					m, err := s.Recv()
					h.Err("recv", err)
					if err != nil {
						return nil
					}
					h.Msg("got", m)
				}
			},
		}})
		var r pb.SimpleResponse
		c.Err("invoke nil", conn.Invoke(c.Context(), unaryCall, nil, &r))
		c.Msg("reply", &r)
		c.Err("invoke typed nil", conn.Invoke(c.Context(), unaryCall, (*pb.SimpleRequest)(nil), &r))
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		c.Err("send nil", s.SendMsg(nil))
		c.Err("send typed nil", s.SendMsg((*pb.StreamingOutputCallRequest)(nil)))
		c.Err("send empty", s.Send(&pb.StreamingOutputCallRequest{}))
		c.Err("close", s.CloseSend())
		_, err = s.Recv()
		c.Err("recv", err)
	}},
	{14, "nil from the server", func(c *C) {
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
			s.SendMsg(nil)
			s.SendMsg((*pb.StreamingOutputCallResponse)(nil))
			return s.SendMsg(nil)
		}}})
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		for range 4 {
			m := out("left over")
			c.Err("recv", s.RecvMsg(m))
			c.Msg("got", m)
		}
	}},
	{14, "a nil reply to Invoke", func(c *C) {
		conn := c.Start(Config{Service: &Service{Unary: echo}})
		c.Code("nil", conn.Invoke(c.Context(), unaryCall, request("x"), nil))
		c.Err("unknown method", conn.Invoke(c.Context(), "/grpc.testing.TestService/UnimplementedCall", nil, nil))
	}},

	{14, "a nil to RecvMsg", func(c *C) {
		conn := c.Start(Config{Service: echoService()})
		for name, desc := range descs() {
			c.Note("--- %s", name)
			s, err := conn.NewStream(c.Context(), desc, duplexCall)
			c.Err("start", err)
			c.Err("send", s.SendMsg(in("x")))
			c.Err("close", s.CloseSend())
			c.Code("recv", s.RecvMsg(nil))
		}
	}},

	{15, "nil replies", func(c *C) {
		var r any
		raw := c.Raw("raw").Unary("Call", func(_ context.Context, dec func(any) error) (any, error) {
			return r, dec(&pb.Empty{})
		})
		conn := c.Start(Config{Register: []func(grpc.ServiceRegistrar){raw.Register},
			Service: &Service{Unary: func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) { return nil, nil }}})
		got := reply("left over")
		c.Err("generated code", conn.Invoke(c.Context(), unaryCall, request("x"), got))
		c.Msg("reply", got)
		for _, r = range []any{nil, (*pb.SimpleResponse)(nil), &pb.SimpleResponse{}} {
			got := reply("left over")
			c.Err(fmt.Sprintf("%T", r), conn.Invoke(c.Context(), "/raw/Call", &pb.Empty{}, got))
			c.Msg("reply", got)
		}
	}},
	{15, "an interceptor that returns nil", func(c *C) {
		conn := c.Start(Config{Service: &Service{Unary: echo},
			UnaryServer: []grpc.UnaryServerInterceptor{func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
				return nil, nil
			}}})
		m, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
		c.Msg("reply", m)
	}},
	{15, "a nil that ends a client stream", func(c *C) {
		conn := c.Start(Config{Service: &Service{Input: func(s inputServer) error { return s.SendAndClose(nil) }}})
		s, err := conn.StreamingInputCall(c.Context())
		c.Err("start", err)
		m, err := s.CloseAndRecv()
		c.Err("recv", err)
		c.Msg("reply", m)
	}},

	{16, "the reply comes when the handler has returned", func(c *C) {
		var returned atomic.Bool
		raw := c.Raw("raw").Stream("Call", bidiDesc, func(s grpc.ServerStream) error {
			defer returned.Store(true)
			s.SendMsg(out("x"))
			c.Pause()
			s.SetTrailer(metadata.Pairs("late", "1"))
			return nil
		})
		conn := c.Start(Config{Register: []func(grpc.ServiceRegistrar){raw.Register}})
		for name, desc := range descs() {
			if desc.ServerStreams {
				continue
			}
			returned.Store(false)
			c.Note("--- %s", name)
			s, err := conn.NewStream(c.Context(), desc, "/raw/Call")
			c.Err("start", err)
			c.Err("recv", s.RecvMsg(&pb.StreamingOutputCallResponse{}))
			c.Note("returned: %v", returned.Load())
			c.MD("trailer", s.Trailer())
		}
		returned.Store(false)
		var trailer metadata.MD
		c.Err("invoke", conn.Invoke(c.Context(), "/raw/Call", in("x"), &pb.StreamingOutputCallResponse{}, grpc.Trailer(&trailer)))
		c.Note("returned: %v", returned.Load())
		c.MD("trailer", trailer)
	}},
	{16, "a cancellation while the handler still runs", func(c *C) {
		sent := c.Gate()
		conn := c.Start(Config{Service: &Service{Input: func(s inputServer) error {
			s.SendAndClose(&pb.StreamingInputCallResponse{})
			sent.Open()
			Until(s.Context(), s.Context().Done())
			return nil
		}}})
		ctx, cancel := c.Cancellable()
		s, err := conn.StreamingInputCall(ctx)
		c.Err("start", err)
		go func() { sent.Wait(); cancel() }()
		_, err = s.CloseAndRecv()
		c.Err("recv", err)
	}},

	{17, "an error after SendAndClose", func(c *C) {
		var end error
		conn := c.Start(Config{Service: &Service{Input: func(s inputServer) error {
			s.SendAndClose(&pb.StreamingInputCallResponse{AggregatedPayloadSize: 5})
			s.SetTrailer(metadata.Pairs("t", "1"))
			return end
		}}})
		for _, end = range []error{status.Error(codes.DataLoss, "lost"), fmt.Errorf("plain"), context.Canceled, io.EOF} {
			s, err := conn.StreamingInputCall(c.Context())
			c.Err("start", err)
			s.Send(&pb.StreamingInputCallRequest{}) // nil or io.EOF: the handler may have returned
			_, err = s.CloseAndRecv()
			c.Err("recv", err)
			md, err := s.Header()
			c.Err("header", err)
			c.MD("header", md)
			c.MD("trailer", s.Trailer())
			c.Err("invoke", conn.Invoke(c.Context(), inputCall, &pb.StreamingInputCallRequest{}, &pb.StreamingInputCallResponse{}))
		}
	}},
	{17, "a unary handler that returns both", func(c *C) {
		conn := c.Start(Config{Service: &Service{Unary: func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			return reply("both"), status.Error(codes.DataLoss, "lost")
		}}})
		got := reply("before")
		c.Err("invoke", conn.Invoke(c.Context(), unaryCall, request("x"), got))
		c.Msg("reply", got)
	}},
	{17, "an interceptor's error after the handler's reply", func(c *C) {
		conn := c.Start(Config{
			Service: echoService(),
			UnaryServer: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				m, _ := next(ctx, req)
				return m, status.Error(codes.DataLoss, "unary")
			}},
			StreamServer: []grpc.StreamServerInterceptor{func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				next(srv, ss)
				return status.Error(codes.DataLoss, "stream")
			}},
		})
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
		s, err := conn.StreamingInputCall(c.Context())
		c.Err("start", err)
		_, err = s.CloseAndRecv()
		c.Err("recv", err)
	}},

	{18, "no reply, one, two", func(c *C) {
		n := 0
		var end error
		raw := c.Raw("raw").Stream("Call", bidiDesc, func(s grpc.ServerStream) error {
			end := end // the handler can outlive its caller
			for i := range n {
				s.SendMsg(out(fmt.Sprint(i)))
			}
			return end
		})
		conn := c.Start(Config{Register: []func(grpc.ServiceRegistrar){raw.Register}})
		for n = range 4 {
			for _, end = range []error{nil, status.Error(codes.NotFound, "gone")} {
				for name, desc := range descs() {
					c.Note("--- %d replies, %v, %s", n, end, name)
					finished := 0
					s, err := conn.NewStream(c.Context(), desc, "/raw/Call", grpc.OnFinish(func(error) { finished++ }))
					c.Err("start", err)
					if !desc.ClientStreams {
						c.Err("send", s.SendMsg(in("x")))
					}
					err = s.RecvMsg(&pb.StreamingOutputCallResponse{})
					c.Err("recv", err)
					if desc.ServerStreams {
						for err == nil {
							err = s.RecvMsg(&pb.StreamingOutputCallResponse{})
						}
						c.Err("end", err)
						c.Note("finished %d", finished)
					}
				}
				c.Err("invoke", conn.Invoke(c.Context(), "/raw/Call", in("x"), &pb.StreamingOutputCallResponse{}))
			}
		}
	}},
	{18, "generated client stream without a reply", func(c *C) {
		conn := c.Start(Config{Service: &Service{Input: func(s inputServer) error { return nil }}})
		s, err := conn.StreamingInputCall(c.Context())
		c.Err("start", err)
		_, err = s.CloseAndRecv()
		c.Err("recv", err)
		_, err = s.CloseAndRecv()
		c.Err("recv again", err)
	}},
	{18, "a second reply while the handler goes on", func(c *C) {
		h := c.Named("handler")
		raw := c.Raw("raw").Stream("Call", bidiDesc, func(s grpc.ServerStream) error {
			s.SendMsg(out("1"))
			s.SendMsg(out("2"))
			c.Pause()
			h.Note("went on")
			return nil
		})
		conn := c.Start(Config{Register: []func(grpc.ServiceRegistrar){raw.Register}})
		c.Err("invoke", conn.Invoke(c.Context(), "/raw/Call", in("x"), &pb.StreamingOutputCallResponse{}))
	}},

	{18, "two replies that cannot both be taken", func(c *C) {
		replies := map[string]proto.Message{
			"small":   out(""),
			"large":   out("of more than five bytes"),
			"garbage": wrapperspb.Bytes([]byte("\xff")), // does not decode as a payload
		}
		var send []string
		raw := c.Raw("raw").Stream("Call", bidiDesc, func(s grpc.ServerStream) error {
			for _, name := range send {
				s.SendMsg(replies[name])
			}
			return nil
		})
		conn := c.Start(Config{Register: []func(grpc.ServiceRegistrar){raw.Register}})
		names := []string{"small", "large", "garbage"}
		for _, first := range names {
			for _, second := range names {
				c.Note("--- %s, %s", first, second)
				send = []string{first, second}
				limit := grpc.MaxCallRecvMsgSize(5)
				c.Err("invoke", conn.Invoke(c.Context(), "/raw/Call", in("x"), &pb.StreamingOutputCallResponse{}, limit))
				s, err := conn.NewStream(c.Context(), clientDesc, "/raw/Call", limit)
				c.Err("start", err)
				c.Err("recv", s.RecvMsg(&pb.StreamingOutputCallResponse{}))
			}
		}
	}},

	{19, "no request, one, two", func(c *C) {
		h := c.Named("handler")
		conn := c.Start(Config{Service: &Service{
			Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				h.Note("unary ran")
				return echo(ctx, m)
			},
			Output: func(m *pb.StreamingOutputCallRequest, s outputServer) error {
				h.Note("output ran")
				return s.Send(out("x"))
			},
		}})
		for _, method := range []string{unaryCall, outputCall} {
			for n := range 3 {
				c.Note("--- %s %d", method, n)
				h.Note("--- %s %d", method, n)
				s, err := conn.NewStream(c.Context(), bidiDesc, method)
				c.Err("start", err)
				for range n {
					if err := s.SendMsg(request("x")); err != nil && err != io.EOF {
						c.Err("send", err)
					}
				}
				c.Err("close", s.CloseSend())
				err = s.RecvMsg(&pb.SimpleResponse{})
				c.Err("recv", err)
				if err == nil {
					c.Err("end", s.RecvMsg(&pb.SimpleResponse{}))
				}
			}
		}
	}},
	{19, "what the handler sees", func(c *C) {
		h := c.Named("handler")
		over := make(chan struct{}, 1)
		recv := func(s grpc.ServerStream) error {
			defer func() { over <- struct{}{} }()
			err := s.RecvMsg(&pb.Empty{})
			h.Err("recv", err)
			h.Err("recv again", s.RecvMsg(&pb.Empty{}))
			return status.Error(codes.AlreadyExists, "from the handler")
		}
		raw := c.Raw("raw").Stream("Call", serverDesc, recv)
		conn := c.Start(Config{Register: []func(grpc.ServiceRegistrar){raw.Register}})
		for n := range 2 {
			h.Note("--- %d", n)
			s, err := conn.NewStream(c.Context(), bidiDesc, "/raw/Call")
			c.Err("start", err)
			for range n {
				c.Err("send", s.SendMsg(&pb.Empty{}))
			}
			c.Err("close", s.CloseSend())
			c.Err("end", s.RecvMsg(&pb.Empty{}))
			c.Wait(over)
		}
	}},

	{20, "RecvMsg after the end", func(c *C) {
		var end error
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error { s.Send(out("x")); return end }}})
		for _, end = range []error{nil, status.Error(codes.NotFound, "gone")} {
			s, err := conn.FullDuplexCall(c.Context())
			c.Err("start", err)
			for range 5 {
				_, err = s.Recv()
				c.Err("recv", err)
			}
			c.MD("trailer", s.Trailer())
		}
	}},
	{20, "the handler's RecvMsg after the end", func(c *C) {
		h := c.Named("handler")
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
			for range 4 {
				m, err := s.Recv()
				h.Err("recv", err)
				h.Note("%s", m.GetPayload().GetBody())
			}
			return s.Send(out("still open"))
		}}})
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		c.Err("send", s.Send(in("x")))
		c.Err("close", s.CloseSend())
		m, err := s.Recv()
		c.Err("recv", err)
		c.Note("%s", m.GetPayload().GetBody())
	}},
	{20, "messages keep their order and their number", func(c *C) {
		conn := c.Start(Config{Service: echoService()})
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		go func() {
			for i := range 500 {
				s.Send(in(fmt.Sprint(i)))
			}
			s.CloseSend()
		}()
		for i := 0; ; i++ {
			m, err := s.Recv()
			if err != nil {
				c.Note("after %d", i)
				c.Err("end", err)
				return
			}
			if got := string(m.Payload.Body); got != fmt.Sprint(i) {
				c.Note("message %d is %s", i, got)
			}
		}
	}},

	{21, "what had arrived comes before the cancellation", func(c *C) {
		sent := c.Gate()
		conn := c.Start(Config{Service: &Service{
			Duplex: func(s duplexServer) error {
				for i := range 3 {
					s.Send(out(fmt.Sprint(i)))
				}
				sent.Open()
				Until(s.Context(), s.Context().Done())
				return nil
			},
			Unary: echo,
		}})
		ctx, cancel := c.Cancellable()
		s, err := conn.FullDuplexCall(ctx)
		c.Err("start", err)
		sent.Wait()
		// These calls are later on the same connection, so what was sent before has arrived
		// after them. A proxy may pass on some calls before what was sent.
		for range 20 {
			_, err = conn.UnaryCall(c.Context(), request("x"))
			c.Err("later call", err)
		}
		cancel()
		for range 4 {
			m, err := s.Recv()
			c.Err("recv", err)
			c.Note("%s", m.GetPayload().GetBody())
		}
	}},
	{21, "what had arrived before the deadline counts when it is received after that", func(c *C) {
		over := c.Gate()
		conn := c.Start(Config{Service: &Service{
			Duplex: func(s duplexServer) error {
				defer over.Open()
				for i := range 3 {
					s.Send(out(fmt.Sprint(i)))
				}
				s.SetTrailer(metadata.Pairs("t", "1"))
				return nil
			},
			Unary: echo,
		}})
		ctx := c.Timeout(500 * time.Millisecond)
		s, err := conn.FullDuplexCall(ctx)
		c.Err("start", err)
		over.Wait()
		c.Pause()
		for range 3 { // these are later on the same connection
			_, err = conn.UnaryCall(c.Context(), request("x"))
			c.Err("later call", err)
		}
		c.Wait(ctx.Done())
		c.Pause()
		for range 4 {
			m, err := s.Recv()
			c.Err("recv", err)
			c.Note("%s", m.GetPayload().GetBody())
		}
		c.Note("trailer %v", s.Trailer()["t"])
	}},
	{21, "what had arrived comes before the status", func(c *C) {
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
			for i := range 20 {
				s.Send(out(fmt.Sprint(i)))
			}
			return status.Error(codes.Aborted, "a")
		}}})
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		for err == nil {
			var m *pb.StreamingOutputCallResponse
			m, err = s.Recv()
			c.Note("%s", m.GetPayload().GetBody())
		}
		c.Err("end", err)
	}},

	{22, "the handler's calls after a cancellation", func(c *C) {
		h := c.Named("handler")
		over, ready := c.Gate(), c.Gate()
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
			defer over.Open()
			ready.Open()
			Until(s.Context(), s.Context().Done())
			h.Note("%v", s.Context().Err())
			h.Err("send", s.Send(out("x")))
			h.Err("send again", s.Send(out("x")))
			_, err := s.Recv()
			h.Err("recv", err)
			h.Code("send header", s.SendHeader(metadata.Pairs("k", "v")))
			return s.Context().Err()
		}}})
		ctx, cancel := c.Cancellable()
		s, err := conn.FullDuplexCall(ctx)
		c.Err("start", err)
		ready.Wait()
		cancel()
		over.Wait()
		_, err = s.Recv()
		c.Err("recv", err)
	}},
	{22, "the handler's calls after the deadline", func(c *C) {
		h := c.Named("handler")
		over := c.Gate()
		// It depends on timing whether the client or the server ends first.
		expired := func(err error) bool {
			return status.Code(err) == codes.DeadlineExceeded || status.Code(err) == codes.Canceled
		}
		conn := c.Start(Config{Service: &Service{Output: func(_ *pb.StreamingOutputCallRequest, s outputServer) error {
			defer over.Open()
			Until(s.Context(), s.Context().Done())
			h.Note("expired %v", expired(status.FromContextError(s.Context().Err()).Err()))
			err := s.Send(out("x"))
			for err == nil {
				err = s.Send(out("x")) // the stream can end a little later than its context
			}
			h.Note("send expired %v", expired(err))
			return nil
		}}})
		s, err := conn.StreamingOutputCall(c.Timeout(300*time.Millisecond), in("x"))
		c.Err("start", err)
		over.Wait()
		for err == nil {
			_, err = s.Recv() // what the handler could still send may have arrived
		}
		c.Code("recv", err)
	}},
	{22, "the deadline ends what a handler waits for, even if its caller is silent", func(c *C) {
		h := c.Named("handler")
		over := c.Gate()
		conn := c.Start(Config{Service: &Service{
			Input: func(s inputServer) error {
				defer over.Open()
				_, err := s.Recv()
				h.Note("recv fails %v", err != nil)
				return err
			},
			Duplex: func(s duplexServer) error {
				defer over.Open()
				var err error
				for n := 0; err == nil && n < 100; n++ { // over ServeHTTP what is sent after the end may be dropped
					err = s.Send(&pb.StreamingOutputCallResponse{Payload: &pb.Payload{Body: make([]byte, 64<<10)}})
				}
				h.Note("send ends")
				return err
			},
		}})
		_, err := conn.EmptyCall(c.Context(), &pb.Empty{}) // it connects
		c.Err("connected", err)
		// The caller's context has a deadline and no timer, so the caller does not end the call itself.
		silent := func() context.Context {
			return ownContext{Context: c.Context(), deadline: time.Now().Add(200 * time.Millisecond), bounded: true, endless: true}
		}
		receiving, err := conn.StreamingInputCall(silent())
		c.Err("start", err)
		over.Wait()
		_, err = receiving.CloseAndRecv()
		c.Code("the caller's end", err)
		over = c.Gate()
		sending, err := conn.FullDuplexCall(silent())
		c.Err("start", err)
		over.Wait()
		for err == nil {
			_, err = sending.Recv()
		}
		c.Code("the caller's end", err)
	}},
	{22, "a handler that sends until it fails", func(c *C) {
		h := c.Named("handler")
		over := c.Gate()
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
			defer over.Open()
			for {
				if err := s.Send(&pb.StreamingOutputCallResponse{Payload: &pb.Payload{Body: make([]byte, 1000)}}); err != nil {
					h.Err("send", err)
					return err
				}
			}
		}}})
		ctx, cancel := c.Cancellable()
		s, err := conn.FullDuplexCall(ctx)
		c.Err("start", err)
		_, err = s.Recv()
		c.Err("recv", err)
		cancel()
		over.Wait()
	}},

	{23, "the handler's context after it returned", func(c *C) {
		ctxs := make(chan context.Context, 1)
		var end error
		conn := c.Start(Config{Service: &Service{
			Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				ctxs <- ctx
				return echo(ctx, m)
			},
			Duplex: func(s duplexServer) error { ctxs <- s.Context(); return end },
		}})
		check := func() {
			ctx := <-ctxs
			c.Wait(ctx.Done())
			c.Note("%v, cause %v", ctx.Err(), context.Cause(ctx))
		}
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
		check()
		for _, end = range []error{nil, status.Error(codes.Aborted, "a")} {
			s, err := conn.FullDuplexCall(c.Context())
			c.Err("start", err)
			_, err = s.Recv()
			c.Err("recv", err)
			check()
		}
	}},
	{23, "not before it returned", func(c *C) {
		h := c.Named("handler")
		conn := c.Start(Config{Service: &Service{Input: func(s inputServer) error {
			s.SendAndClose(&pb.StreamingInputCallResponse{})
			c.Pause()
			h.Note("%v", s.Context().Err())
			return nil
		}}})
		s, err := conn.StreamingInputCall(c.Context())
		c.Err("start", err)
		_, err = s.CloseAndRecv()
		c.Err("recv", err)
	}},
	{44, "an upload of messages of mixed sizes", func(c *C) {
		s, err := c.Start(Config{Service: echoService()}).StreamingInputCall(c.Context())
		c.Err("start", err)
		r := rand.New(rand.NewPCG(1, 1))
		for i := range 30 {
			size := 10_000 + r.IntN(700_000)
			if i == 0 {
				size = 3_900_000 // windows that can grow do
			}
			if err = s.Send(&pb.StreamingInputCallRequest{Payload: &pb.Payload{Body: make([]byte, size)}}); err != nil {
				break
			}
		}
		c.Err("send", err)
		m, err := s.CloseAndRecv()
		c.Err("recv", err)
		c.Note("%d", m.GetAggregatedPayloadSize())
	}},
	{44, "echoes of mixed sizes", func(c *C) {
		s, err := c.Start(Config{Service: echoService()}).FullDuplexCall(c.Context())
		c.Err("start", err)
		r := rand.New(rand.NewPCG(2, 2))
		size := func(i int) int { return r.IntN([]int{1, 1000, 100_000, 3_000_000}[i%4]) }
		sent := make(chan error, 1)
		go func() {
			for i := range 24 {
				if err := s.Send(&pb.StreamingOutputCallRequest{Payload: &pb.Payload{Body: make([]byte, size(i))}}); err != nil {
					sent <- err
					return
				}
			}
			sent <- s.CloseSend()
		}()
		messages, bytes := 0, 0
		for {
			m, err := s.Recv()
			if err != nil {
				c.Err("recv", err)
				break
			}
			messages++
			bytes += len(m.GetPayload().GetBody())
		}
		c.Err("send", <-sent)
		c.Note("%d messages of %d bytes", messages, bytes)
	}},
}

// echoService echoes on all methods.
func echoService() *Service {
	return &Service{
		Unary: echo,
		Input: func(s inputServer) error {
			size := 0
			for {
				m, err := s.Recv()
				if err != nil {
					return s.SendAndClose(&pb.StreamingInputCallResponse{AggregatedPayloadSize: int32(size)})
				}
				size += len(m.GetPayload().GetBody())
			}
		},
		Output: func(m *pb.StreamingOutputCallRequest, s outputServer) error {
			return s.Send(&pb.StreamingOutputCallResponse{Payload: m.Payload})
		},
		Duplex: func(s duplexServer) error {
			for {
				m, err := s.Recv()
				if err == io.EOF {
					return nil
				}
				if err != nil {
					return err
				}
				if err := s.Send(&pb.StreamingOutputCallResponse{Payload: m.Payload}); err != nil {
					return err
				}
			}
		},
	}
}
