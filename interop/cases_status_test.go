package interop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	epb "google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// stError is an error type with its own status.
type stError struct {
	text string
	st   *status.Status
}

func (e *stError) Error() string              { return e.text }
func (e *stError) GRPCStatus() *status.Status { return e.st }

var errPlain = errors.New("plain")

// handlerErrors are errors that handlers can return.
var handlerErrors = []error{
	errPlain,
	io.EOF,
	io.ErrUnexpectedEOF,
	context.Canceled,
	context.DeadlineExceeded,
	fmt.Errorf("wrapped: %w", context.Canceled),
	fmt.Errorf("wrapped: %w", context.DeadlineExceeded),
	fmt.Errorf("wrapped: %w", errPlain),
	status.Error(codes.NotFound, "found nothing"),
	status.Error(codes.Canceled, "not really"),
	status.Error(codes.NotFound, ""),
	fmt.Errorf("wrapped: %w", status.Error(codes.NotFound, "found nothing")),
	fmt.Errorf("twice: %w", fmt.Errorf("wrapped: %w", status.Error(codes.NotFound, "found nothing"))),
	fmt.Errorf("two: %w, %w", status.Error(codes.NotFound, "1"), status.Error(codes.Aborted, "2")),
	errors.Join(errPlain, status.Error(codes.Aborted, "joined")),
	errors.Join(status.Error(codes.Aborted, "joined"), context.Canceled),
	status.Error(codes.Code(77), "unheard of"),
	&stError{"text", status.New(codes.DataLoss, "status")},
	&stError{"text", nil},
	fmt.Errorf("wrapped: %w", &stError{"text", status.New(codes.DataLoss, "status")}),
	fmt.Errorf("wrapped: %w", &stError{"text", nil}),
	(*stError)(nil),
}

// statusCases are about errors and statuses: items 27 to 29.
var statusCases = []Case{
	{27, "errors of handlers", func(c *C) {
		var end error
		conn := c.Start(Config{Service: failing(&end)})
		for _, end = range handlerErrors {
			if end == (*stError)(nil) {
				continue // its methods panic
			}
			c.Note("--- %T %q", end, end.Error())
			noteFailures(c, conn)
		}
	}},
	{27, "errors of interceptors", func(c *C) {
		var end error
		conn := c.Start(Config{
			Service: echoService(),
			UnaryServer: []grpc.UnaryServerInterceptor{func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
				return nil, end
			}},
			StreamServer: []grpc.StreamServerInterceptor{func(any, grpc.ServerStream, *grpc.StreamServerInfo, grpc.StreamHandler) error {
				return end
			}},
		})
		for _, end = range []error{errPlain, context.Canceled, fmt.Errorf("wrapped: %w", status.Error(codes.NotFound, "x"))} {
			noteFailures(c, conn)
		}
	}},
	{27, "no identity crosses", func(c *C) {
		shared := status.New(codes.NotFound, "shared")
		for _, end := range []error{errPlain, shared.Err(), &stError{"text", shared}, context.Canceled, io.EOF} {
			conn := c.Start(Config{Service: failing(&end)})
			_, err := conn.UnaryCall(c.Context(), request("x"))
			var own *stError
			c.Note("same %v, Is %v, As %v, Unwrap %v", err == end, errors.Is(err, end) && status.Code(end) == codes.Unknown,
				errors.As(err, &own), errors.Unwrap(err))
			c.Note("%v", err)
		}
	}},
	{27, "every code", func(c *C) {
		var end error
		conn := c.Start(Config{Service: failing(&end)})
		for code := codes.Code(1); code < 19; code++ {
			end = status.Error(code, code.String())
			_, err := conn.UnaryCall(c.Context(), request("x"))
			c.Err("unary", err)
		}
		for _, code := range []codes.Code{1<<31 - 1, 1 << 31, 4000000000, 1<<32 - 1} {
			end = status.Error(code, "large")
			noteFailures(c, conn)
		}
	}},
	{27, "errors under reflect.DeepEqual", func(c *C) {
		fresh := func() error { return status.Error(codes.NotFound, "no such thing") }
		kept := fresh()
		with := func() *status.Status {
			st, _ := status.New(codes.NotFound, "no such thing").WithDetails(&pb.SimpleRequest{ResponseSize: 7})
			return st
		}
		for name, fail := range map[string]func() error{
			"new": fresh,
			"read": func() error {
				err := fresh()
				_ = status.Convert(err).Proto()
				return err
			},
			"from a message": func() error { return status.FromProto(status.Convert(fresh()).Proto()).Err() },
			"kept": func() error {
				_ = status.Convert(kept).Proto().String()
				return kept
			},
			"with details": func() error { return with().Err() },
		} {
			var end error
			conn := c.Start(Config{Service: failing(&end)})
			want := fresh()
			if name == "with details" {
				want = with().Err()
			}
			equal := func(what string, err error) {
				same := c.Named(name)
				same.Note("%s: %v, and read %v", what, reflect.DeepEqual(want, err), reflect.DeepEqual(status.Convert(want).Proto(), status.Convert(err).Proto()))
			}
			end = fail()
			_, err := conn.UnaryCall(c.Context(), request("x"))
			equal("unary", err)
			end = fail()
			d, err := conn.FullDuplexCall(c.Context())
			for err == nil {
				_, err = d.Recv()
			}
			equal("stream", err)
			_ = d.Trailer()
			equal("stream with its trailer", err)
		}
	}},
	{27, "messages under reflect.DeepEqual", func(c *C) {
		request, reply := &pb.SimpleRequest{Payload: &pb.Payload{Body: []byte("b")}}, &pb.SimpleResponse{Username: "u"}
		h := c.Named("handler")
		conn := c.Start(Config{Service: &Service{
			Unary: func(_ context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				used := &pb.SimpleRequest{Payload: &pb.Payload{Body: []byte("b")}}
				h.Note("new %v", reflect.DeepEqual(used, m))
				used.ProtoReflect()
				h.Note("used %v", reflect.DeepEqual(used, m))
				return &pb.SimpleResponse{Username: "u"}, nil
			},
			Duplex: func(s duplexServer) error {
				m, err := s.Recv()
				used := in("b")
				used.ProtoReflect()
				h.Note("used %v %v", reflect.DeepEqual(used, m), err)
				return s.Send(&pb.StreamingOutputCallResponse{})
			},
		}})
		for range 2 {
			got, err := conn.UnaryCall(c.Context(), request)
			c.Err("unary", err)
			c.Note("new %v", reflect.DeepEqual(&pb.SimpleResponse{Username: "u"}, got))
			reply.ProtoReflect()
			c.Note("used %v", reflect.DeepEqual(reply, got))
		}
		d, err := conn.FullDuplexCall(c.Context())
		c.Err("stream", err)
		c.Err("send", d.Send(in("b")))
		got, err := d.Recv()
		c.Err("recv", err)
		used := &pb.StreamingOutputCallResponse{}
		used.ProtoReflect()
		c.Note("used %v", reflect.DeepEqual(used, got))
	}},
	{27, "a client's error passed on by a handler", func(c *C) {
		var conn *Conn
		conn = c.Start(Config{Service: &Service{
			Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				_, err := conn.EmptyCall(ctx, &pb.Empty{})
				return nil, fmt.Errorf("passed on: %w", err)
			},
			Empty: func(context.Context, *pb.Empty) (*pb.Empty, error) {
				return nil, status.Error(codes.FailedPrecondition, "inner")
			},
		}})
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
	}},

	{28, "an error whose status is OK", func(c *C) {
		var end error
		conn := c.Start(Config{Service: failing(&end)})
		for _, end = range []error{
			&stError{"text", status.New(codes.OK, "")},
			&stError{"text", status.New(codes.OK, "fine")},
			fmt.Errorf("wrapped: %w", &stError{"text", status.New(codes.OK, "fine")}),
		} {
			c.Note("--- %T", end)
			noteFailures(c, conn)
		}
	}},

	{29, "details", func(c *C) {
		st, _ := status.New(codes.InvalidArgument, "see details").WithDetails(
			&epb.ErrorInfo{Reason: "R", Domain: "d", Metadata: map[string]string{"k": "v"}}, payload("second"))
		end := st.Err()
		conn := c.Start(Config{Service: failing(&end)})
		for range 2 {
			_, err := conn.UnaryCall(c.Context(), request("x"))
			c.Err("unary", err)
			// The client can change its details.
			p := status.Convert(err).Proto()
			for _, d := range p.Details {
				clear(d.Value)
			}
			p.Message = "changed"
		}
		noteFailures(c, conn)
		c.Msg("the server's own", st.Proto())
		end = fmt.Errorf("wrapped: %w", end)
		noteFailures(c, conn)
	}},
	{29, "details of unknown and broken types", func(c *C) {
		var end error
		conn := c.Start(Config{Service: failing(&end)})
		for _, d := range []*anypb.Any{
			{TypeUrl: "type.googleapis.com/no.such.Type", Value: []byte("any")},
			{TypeUrl: "", Value: nil},
			{TypeUrl: "type.googleapis.com/grpc.testing.Payload", Value: []byte("\xff\xff")},
		} {
			end = status.FromProto(&spb.Status{Code: 3, Message: "m", Details: []*anypb.Any{d}}).Err()
			_, err := conn.UnaryCall(c.Context(), request("x"))
			c.Code("unary", err)
			c.Msg("proto", status.Convert(err).Proto())
		}
		end = &stError{"nil detail", status.FromProto(&spb.Status{Code: 3, Message: "m", Details: []*anypb.Any{nil}})}
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Code("nil detail", err)
	}},
	{29, "details that a handler sets itself", func(c *C) {
		var own []string
		var end error
		set := func(ctx context.Context) {
			grpc.SetHeader(ctx, metadata.Pairs("grpc-status-details-bin", "in a header"))
			for _, v := range own {
				grpc.SetTrailer(ctx, metadata.Pairs("grpc-status-details-bin", v, "t", "1"))
			}
		}
		conn := c.Start(Config{Service: &Service{
			Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				set(ctx)
				return reply("x"), end
			},
			Duplex: func(s duplexServer) error {
				set(s.Context())
				return end
			},
		}})
		st := func(code codes.Code, details ...*anypb.Any) string {
			return string(marshal(&spb.Status{Code: int32(code), Message: "own", Details: details}))
		}
		detail := &anypb.Any{TypeUrl: "type.googleapis.com/no.such.Type", Value: []byte("any")}
		detailed, err := status.New(codes.Aborted, "returned").WithDetails(payload("d"))
		c.Err("details", err)
		for _, end = range []error{nil, status.Error(codes.Aborted, "returned"), detailed.Err()} {
			for _, own = range [][]string{
				{st(codes.Aborted, detail)}, {st(codes.Aborted)}, {st(codes.NotFound, detail)}, {st(codes.OK, detail)},
				{"\xff no status"}, {""}, {st(codes.Aborted, detail), st(codes.Aborted)},
			} {
				var header, trailer metadata.MD
				_, err := conn.UnaryCall(c.Context(), request("x"), grpc.Header(&header), grpc.Trailer(&trailer))
				c.Err("unary", err)
				c.MD("header", header)
				c.Msg("status", status.Convert(err).Proto())
				c.MD("trailer", trailer)
				s, err := conn.FullDuplexCall(c.Context())
				c.Err("start", err)
				_, err = s.Recv()
				c.Err("stream", err)
				c.Msg("status", status.Convert(err).Proto())
				c.MD("trailer", s.Trailer())
			}
		}
	}},
	{29, "odd messages", func(c *C) {
		var end error
		conn := c.Start(Config{Service: failing(&end)})
		for _, m := range []string{"\xff\xfe", "a\xc0b", "cut \xe4\xb8", "\xed\xa0\x80", "snow ☃ 🎉", "100% %41 %zz", "line\nfeed\r\n", "\x00\x01\x7f", " spaces ", "tab\t", strings.Repeat("long ", 500)} {
			end = status.Error(codes.Aborted, m)
			_, err := conn.UnaryCall(c.Context(), request("x"))
			c.Err("plain", err)
			st, derr := status.New(codes.Aborted, m).WithDetails(payload("d"))
			c.Note("%v", derr)
			end = st.Err()
			_, err = conn.UnaryCall(c.Context(), request("x"))
			c.Err("with details", err)
			s, err := conn.FullDuplexCall(c.Context())
			c.Err("start", err)
			for err == nil {
				_, err = s.Recv()
			}
			c.Err("stream", err)
		}
		end = errors.New("plain \xff")
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("plain error", err)
	}},
}

// failing returns a service whose handlers all return *end.
func failing(end *error) *Service {
	return &Service{
		Unary:  func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) { return nil, *end },
		Output: func(*pb.StreamingOutputCallRequest, outputServer) error { return *end },
		Input:  func(inputServer) error { return *end },
		Duplex: func(s duplexServer) error { s.Send(out("x")); return *end },
	}
}

// noteFailures notes the outcome of calls of all kinds to a service that fails.
func noteFailures(c *C, conn *Conn) {
	_, err := conn.UnaryCall(c.Context(), request("x"))
	c.Err("unary", err)
	o, err := conn.StreamingOutputCall(c.Context(), in("x"))
	c.Err("start", err)
	_, err = o.Recv()
	c.Err("server stream", err)
	i, err := conn.StreamingInputCall(c.Context())
	c.Err("start", err)
	_, err = i.CloseAndRecv()
	c.Err("client stream", err)
	d, err := conn.FullDuplexCall(c.Context())
	c.Err("start", err)
	for err == nil {
		_, err = d.Recv()
	}
	c.Err("bidi stream", err)
}

// headerCases are about headers, trailers and how a call's end shows: items 30 to 33.
var headerCases = []Case{
	{30, "headers and trailers of a unary call", func(c *C) {
		h := c.Named("handler")
		var end error
		conn := c.Start(Config{Service: &Service{Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			h.Err("set nil", grpc.SetHeader(ctx, nil))
			h.Err("set empty", grpc.SetHeader(ctx, metadata.MD{}))
			h.Err("set", grpc.SetHeader(ctx, metadata.Pairs("k", "1", "x-bin", "\x00\xff")))
			h.Err("set more", grpc.SetHeader(ctx, metadata.Pairs("k", "2")))
			h.Err("send", grpc.SendHeader(ctx, metadata.Pairs("k", "3")))
			h.Err("send again", grpc.SendHeader(ctx, metadata.Pairs("k", "4")))
			h.Err("send nothing again", grpc.SendHeader(ctx, nil))
			h.Err("set late", grpc.SetHeader(ctx, metadata.Pairs("k", "5")))
			h.Err("set nothing late", grpc.SetHeader(ctx, nil))
			h.Err("trailer", grpc.SetTrailer(ctx, metadata.Pairs("t", "1", "t-bin", "\x00\xff")))
			h.Err("trailer", grpc.SetTrailer(ctx, metadata.Pairs("t", "2")))
			h.Err("trailer nil", grpc.SetTrailer(ctx, nil))
			return reply("x"), end
		}}})
		for _, end = range []error{nil, status.Error(codes.Aborted, "a")} {
			var header, trailer metadata.MD
			_, err := conn.UnaryCall(c.Context(), request("x"), grpc.Header(&header), grpc.Trailer(&trailer))
			c.Err("unary", err)
			c.MD("header", header)
			c.MD("trailer", trailer)
		}
	}},
	{30, "headers and trailers of a stream", func(c *C) {
		h := c.Named("handler")
		var end error
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
			h.Err("set nil", s.SetHeader(nil))
			h.Err("set", s.SetHeader(metadata.Pairs("k", "1")))
			h.Err("set", s.SetHeader(metadata.Pairs("k", "2", "x-bin", "\xff")))
			h.Err("first message", s.Send(out("x")))
			h.Err("set late", s.SetHeader(metadata.Pairs("k", "3")))
			h.Err("set nothing late", s.SetHeader(nil))
			h.Err("send late", s.SendHeader(metadata.Pairs("k", "4")))
			s.SetTrailer(metadata.Pairs("t", "1"))
			s.SetTrailer(nil)
			s.SetTrailer(metadata.Pairs("t", "2", "x-bin", "\xff"))
			return end
		}}})
		for _, end = range []error{nil, status.Error(codes.Aborted, "a")} {
			s, err := conn.FullDuplexCall(c.Context())
			c.Err("start", err)
			md, err := s.Header()
			c.Err("header", err)
			c.MD("header", md)
			for err == nil {
				_, err = s.Recv()
			}
			c.Err("recv", err)
			c.MD("trailer", s.Trailer())
		}
	}},
	{30, "headers that were set but never sent", func(c *C) {
		var end error
		conn := c.Start(Config{Service: &Service{
			Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				grpc.SetHeader(ctx, metadata.Pairs("k", "1"))
				grpc.SetTrailer(ctx, metadata.Pairs("t", "1"))
				return reply("x"), end
			},
			Duplex: func(s duplexServer) error {
				s.SetHeader(metadata.Pairs("k", "1"))
				s.SetTrailer(metadata.Pairs("t", "1"))
				return end
			},
		}})
		for _, end = range []error{nil, status.Error(codes.Aborted, "a")} {
			var header, trailer metadata.MD
			_, err := conn.UnaryCall(c.Context(), request("x"), grpc.Header(&header), grpc.Trailer(&trailer))
			c.Err("unary", err)
			c.MD("header", header)
			c.MD("trailer", trailer)
			s, err := conn.FullDuplexCall(c.Context())
			c.Err("start", err)
			md, err := s.Header()
			c.Err("header", err)
			c.MD("header", md)
			_, err = s.Recv()
			c.Err("recv", err)
			c.MD("trailer", s.Trailer())
		}
	}},
	{30, "a handler's metadata is not aliased", func(c *C) {
		header, trailer := metadata.Pairs("k", "1"), metadata.Pairs("t", "1")
		conn := c.Start(Config{Service: &Service{Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			grpc.SetHeader(ctx, header)
			grpc.SetTrailer(ctx, trailer)
			return reply("x"), nil
		}}})
		for range 2 {
			var h, t metadata.MD
			_, err := conn.UnaryCall(c.Context(), request("x"), grpc.Header(&h), grpc.Trailer(&t))
			c.Err("unary", err)
			c.MD("header", h)
			c.MD("trailer", t)
			h["k"][0], t["t"][0] = "changed", "changed"
			h["new"] = []string{"new"}
		}
		c.MD("the server's", header)
		c.MD("the server's", trailer)
	}},
	{30, "content-type of a header and of a call without", func(c *C) {
		var end error
		conn := c.Start(Config{Service: &Service{Unary: func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) { return reply("x"), end }}})
		var header, trailer metadata.MD
		_, err := conn.UnaryCall(c.Context(), request("x"), grpc.Header(&header), grpc.Trailer(&trailer))
		c.Err("unary", err)
		c.Note("%q %q", header["content-type"], trailer["content-type"])
		c.Note("%d %d", len(header), len(trailer))
	}},

	{31, "calls that end without headers", func(c *C) {
		var end error
		conn := c.Start(Config{Service: &Service{
			Duplex: func(s duplexServer) error { return end },
			Input:  func(s inputServer) error { return end },
		}})
		for _, end = range []error{nil, status.Error(codes.Aborted, "a")} {
			s, err := conn.FullDuplexCall(c.Context())
			c.Err("start", err)
			md, err := s.Header()
			c.Err("header", err)
			c.MD("header", md)
			_, err = s.Recv()
			c.Err("recv", err)
			md, err = s.Header()
			c.Err("header", err)
			c.MD("header", md)
			i, err := conn.StreamingInputCall(c.Context())
			c.Err("start", err)
			md, err = i.Header()
			c.Err("header", err)
			c.MD("header", md)
			_, err = i.CloseAndRecv()
			c.Err("recv", err)
		}
		s, err := conn.NewStream(c.Context(), bidiDesc, "/none/Call")
		c.Err("start", err)
		md, err := s.Header()
		c.Err("header", err)
		c.MD("header", md)
		c.Err("recv", s.RecvMsg(&pb.Empty{}))
	}},
	{31, "an empty header that was sent", func(c *C) {
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error { s.SendHeader(nil); return nil }}})
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		md, err := s.Header()
		c.Err("header", err)
		c.MD("header", md)
	}},

	{32, "call options when the last RecvMsg returns", func(c *C) {
		var end error
		conn := c.Start(Config{Service: &Service{
			Duplex: func(s duplexServer) error {
				s.SendHeader(metadata.Pairs("k", "1"))
				s.Send(out("x"))
				s.SetTrailer(metadata.Pairs("t", "1"))
				return end
			},
			Input: func(s inputServer) error {
				s.SetHeader(metadata.Pairs("k", "1"))
				s.SetTrailer(metadata.Pairs("t", "1"))
				s.SendAndClose(&pb.StreamingInputCallResponse{})
				return end
			},
		}})
		for _, end = range []error{nil, status.Error(codes.Aborted, "a")} {
			var header, trailer metadata.MD
			var p peer.Peer
			opts := []grpc.CallOption{grpc.Header(&header), grpc.Trailer(&trailer), grpc.Peer(&p)}
			s, err := conn.FullDuplexCall(c.Context(), opts...)
			c.Err("start", err)
			for err == nil {
				_, err = s.Recv()
			}
			c.Err("end", err)
			c.MD("header", header)
			c.MD("trailer", trailer)
			c.Note("peer %v", p.Addr != nil)
			header, trailer, p = nil, nil, peer.Peer{}
			i, err := conn.StreamingInputCall(c.Context(), opts...)
			c.Err("start", err)
			_, err = i.CloseAndRecv()
			c.Err("end", err)
			c.MD("header", header)
			c.MD("trailer", trailer)
			c.Note("peer %v", p.Addr != nil)
		}
	}},
	{32, "call options of unary calls that fail", func(c *C) {
		end := status.Error(codes.Aborted, "a")
		conn := c.Start(Config{Service: &Service{Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			grpc.SendHeader(ctx, metadata.Pairs("k", "1"))
			grpc.SetTrailer(ctx, metadata.Pairs("t", "1"))
			return reply("x"), end
		}}})
		for _, method := range []string{unaryCall, "/none/Call"} {
			header, trailer := metadata.Pairs("left", "over"), metadata.Pairs("left", "over")
			var p peer.Peer
			err := conn.Invoke(c.Context(), method, request("x"), &pb.SimpleResponse{}, grpc.Header(&header), grpc.Trailer(&trailer), grpc.Peer(&p))
			c.Err("invoke", err)
			c.MD("header", header)
			c.MD("trailer", trailer)
			c.Note("peer %v", p.Addr != nil)
		}
		end = nil
		header, trailer := metadata.MD(nil), metadata.MD(nil)
		err := conn.Invoke(c.Context(), unaryCall, request("xxxxx"), &pb.SimpleResponse{}, grpc.MaxCallRecvMsgSize(1), grpc.Header(&header))
		c.Err("reply too large", err)
		c.MD("header", header)
		err = conn.Invoke(c.Context(), unaryCall, request("xxxxx"), &pb.SimpleResponse{}, grpc.MaxCallSendMsgSize(1), grpc.Header(&header), grpc.Trailer(&trailer))
		c.Err("request too large", err)
	}},
	{32, "call options after a cancellation", func(c *C) {
		sent, over := c.Gate(), c.Gate()
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error {
			defer over.Open()
			s.SendHeader(metadata.Pairs("k", "1"))
			s.SetTrailer(metadata.Pairs("t", "never seen"))
			sent.Open()
			Until(s.Context(), s.Context().Done())
			return nil
		}}})
		ctx, cancel := c.Cancellable()
		var header, trailer metadata.MD
		s, err := conn.FullDuplexCall(ctx, grpc.Header(&header), grpc.Trailer(&trailer))
		c.Err("start", err)
		md, err := s.Header()
		c.Err("header", err)
		c.MD("header", md)
		sent.Wait()
		cancel()
		_, err = s.Recv()
		c.Err("recv", err)
		over.Wait()
		c.MD("trailer", s.Trailer())
	}},

	{33, "OnFinish of unary calls", func(c *C) {
		var end error
		conn := c.Start(Config{Service: failing(&end)})
		try := func(label, method string, ctx context.Context, req any, opts ...grpc.CallOption) {
			var got []string
			note := func(n string) grpc.CallOption {
				return grpc.OnFinish(func(err error) { _, s := describe(err); got = append(got, n+" "+s) })
			}
			err := conn.Invoke(ctx, method, req, &pb.SimpleResponse{}, append(opts, note("first"), note("second"))...)
			c.Code(label, err)
			c.Note("%q", got)
		}
		try("ok", unaryCall, c.Context(), request("x"))
		end = status.Error(codes.Aborted, "a")
		try("error", unaryCall, c.Context(), request("x"))
		end = nil
		done, cancel := c.Cancellable()
		cancel()
		try("done", unaryCall, done, request("x"))
		try("illegal metadata", unaryCall, metadata.NewOutgoingContext(c.Context(), metadata.MD{"K": {""}}), request("x"))
		try("malformed method", "nonsense", c.Context(), request("x"))
		try("unknown codec", unaryCall, c.Context(), request("x"), grpc.CallContentSubtype("interop-unknown"))
		try("unknown compressor", unaryCall, c.Context(), request("x"), grpc.UseCompressor("interop-unknown"))
		try("not a message", unaryCall, c.Context(), "text")
		try("too large", unaryCall, c.Context(), request("xxxx"), grpc.MaxCallSendMsgSize(1))
		conn.Close()
		try("closed", unaryCall, c.Context(), request("x"))
	}},
	{33, "OnFinish of streams", func(c *C) {
		var end error
		conn := c.Start(Config{Service: failing(&end)})
		for _, end = range []error{nil, status.Error(codes.Aborted, "a")} {
			var got []string
			s, err := conn.FullDuplexCall(c.Context(), grpc.OnFinish(func(err error) { _, s := describe(err); got = append(got, s) }))
			c.Err("start", err)
			_, err = s.Recv()
			c.Err("recv", err)
			c.Note("%q", got)
			_, err = s.Recv()
			c.Err("end", err)
			c.Note("%q", got)
			s.Recv()
			s.CloseSend()
			c.Note("%q", got)
		}
	}},
	{33, "OnFinish of a cancelled stream", func(c *C) {
		conn := c.Start(Config{Service: &Service{Duplex: func(s duplexServer) error { Until(s.Context(), s.Context().Done()); return nil }}})
		ctx, cancel := c.Cancellable()
		finished := make(chan error, 9)
		s, err := conn.FullDuplexCall(ctx, grpc.OnFinish(func(err error) { finished <- err }))
		c.Err("start", err)
		cancel()
		select {
		case err := <-finished:
			c.Err("finished", err)
		case <-c.dead:
		}
		_, err = s.Recv()
		c.Err("recv", err)
		c.Note("more: %d", len(finished))
	}},
	{33, "OnFinish and interceptors", func(c *C) {
		var got []string
		note := func(n string) grpc.CallOption {
			return grpc.OnFinish(func(err error) { _, s := describe(err); got = append(got, n+" "+s) })
		}
		conn := c.Start(Config{
			Service:     echoService(),
			CallOptions: []grpc.CallOption{note("default")},
			UnaryClient: []grpc.UnaryClientInterceptor{func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				err := invoker(ctx, method, req, reply, cc, append(opts, note("interceptor"))...)
				got = append(got, "after the invoker")
				return err
			}},
		})
		_, err := conn.UnaryCall(c.Context(), request("x"), note("call"))
		c.Err("unary", err)
		c.Note("%q", got)
	}},
}
