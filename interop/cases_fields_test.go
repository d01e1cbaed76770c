package interop

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// fieldCases are about what users put into a call's header fields beside metadata: items 3,
// 5 and 8. What HTTP/2 refuses fails with Internal, in HTTP/2's words.
var fieldCases = []Case{
	{8, "methods of odd characters", func(c *C) {
		var ran atomic.Int32
		conn := c.Start(Config{Service: countingService(&ran)})
		other := openEcho(c, conn)
		for _, field := range oddFields {
			for _, name := range []string{field, "/" + field, "/" + field + "/Call", "/grpc.testing.TestService/" + field, unaryCall + field} {
				label := fmt.Sprintf("%q", name)
				noteRefusal(c.Actor, label, conn.Invoke(c.Context(), name, request("x"), &pb.SimpleResponse{}))
				noteStream(c, conn, label, name)
			}
		}
		other("the other call")
		c.Note("handlers: %d", ran.Load())
	}},
	{8, "services and methods that are registered with odd characters", func(c *C) {
		h := c.Named("handler")
		var raw []func(grpc.ServiceRegistrar)
		for _, field := range oddFields {
			raw = append(raw, c.Raw("odd"+field).Unary("Call"+field, func(ctx context.Context, dec func(any) error) (any, error) {
				m, _ := grpc.Method(ctx)
				h.Note("%q", m)
				return &pb.SimpleResponse{}, dec(&pb.SimpleRequest{})
			}).Stream("Stream"+field, bidiDesc, func(s grpc.ServerStream) error {
				m, _ := grpc.MethodFromServerStream(s)
				h.Note("stream %q", m)
				return nil
			}).Register)
		}
		conn := c.Start(Config{Register: raw})
		for _, field := range oddFields {
			name := "/odd" + field + "/Call" + field
			noteRefusal(c.Actor, fmt.Sprintf("%q", name), conn.Invoke(c.Context(), name, request("x"), &pb.SimpleResponse{}))
			name = "/odd" + field + "/Stream" + field
			noteStream(c, conn, fmt.Sprintf("%q", name), name)
		}
	}},
	{8, "odd characters and the unknown service handler", func(c *C) {
		h := c.Named("handler")
		conn := c.Start(Config{Unknown: func(_ any, s grpc.ServerStream) error {
			m, ok := grpc.MethodFromServerStream(s)
			h.Note("%q %v", m, ok)
			return status.Error(codes.NotFound, "nobody")
		}})
		for _, field := range oddFields {
			name := "/odd/Call" + field
			noteRefusal(c.Actor, fmt.Sprintf("%q", name), conn.Invoke(c.Context(), name, request("x"), &pb.SimpleResponse{}))
		}
	}},
	{8, "who is told of a method with control characters", func(c *C) {
		client, server := &eventNames{a: c.Named("client's stats")}, &eventNames{a: c.Named("server's stats")}
		conn := c.Start(Config{
			Service:     &Service{Unary: echo},
			ClientStats: []stats.Handler{client},
			ServerStats: []stats.Handler{server},
			UnaryServer: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, i *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				c.Named("interceptor").Note("%q", i.FullMethod)
				return next(ctx, req)
			}},
		})
		finished := 0
		var header, trailer metadata.MD
		err := conn.Invoke(c.Context(), unaryCall+"\n", request("x"), &pb.SimpleResponse{},
			grpc.OnFinish(func(err error) { finished++; c.Code("finished", err) }), grpc.Header(&header), grpc.Trailer(&trailer))
		c.Code("unary", err)
		c.Note("finished %d", finished)
		c.MD("header", header)
		c.MD("trailer", trailer)
		s, err := conn.NewStream(c.Context(), bidiDesc, duplexCall+"\n")
		c.Err("start", err)
		md, err := s.Header()
		c.Code("header", err)
		c.MD("header", md)
		c.Code("recv", s.RecvMsg(&pb.SimpleResponse{}))
		c.MD("trailer", s.Trailer())
		c.Err("close", s.CloseSend())
	}},

	{5, "authorities of odd characters", func(c *C) {
		conn := c.Start(Config{Service: noteFields(c, ":authority")})
		other := openEcho(c, conn)
		for _, field := range oddFields {
			if field != "" { // that is the target's authority
				noteFieldCalls(c, conn, field, grpc.CallAuthority(field))
			}
		}
		other("the other call")
	}},
	{5, "an authority of odd characters that all calls have", func(c *C) {
		for _, field := range oddFields {
			if field == "" {
				continue
			}
			conn := c.Start(Config{Authority: field, Service: noteFields(c, ":authority")})
			noteFieldCalls(c, conn, field)
			if field == "a\nb" {
				noteFieldCalls(c, conn, "with another of its own", grpc.CallAuthority("call.example"))
			}
		}
	}},
	{5, "user agents of odd characters", func(c *C) {
		for _, field := range oddFields {
			conn := c.Start(Config{UserAgent: field, Service: noteFields(c, "user-agent")})
			noteFieldCalls(c, conn, field)
		}
	}},
	{5, "content subtypes of odd characters", func(c *C) {
		conn := c.Start(Config{Service: noteFields(c, "content-type")})
		other := openEcho(c, conn)
		for _, field := range append(oddFields, "UPPER", "Proto", "+", ";", "a;b", "a,b") {
			c.Note("--- by name")
			noteFieldCalls(c, conn, field, grpc.CallContentSubtype(field))
			c.Note("--- of a codec")
			noteFieldCalls(c, conn, field, grpc.ForceCodecV2(protoAs(field)))
			c.Note("--- of an option, with a codec")
			noteFieldCalls(c, conn, field, grpc.ContentSubtypeCallOption{ContentSubtype: field}, grpc.ForceCodecV2(protoAs("proto")))
		}
		other("the other call")
	}},
	{5, "content subtypes of odd characters that are registered", func(c *C) {
		conn := c.Start(Config{Service: noteFields(c, "content-type")})
		for _, field := range oddSubtypes {
			noteFieldCalls(c, conn, field, grpc.CallContentSubtype(field))
		}
		noteFieldCalls(c, conn, "in upper case", grpc.CallContentSubtype("INTEROP ODD"))
	}},
	{43, "calls with control characters and a policy that retries Internal", func(c *C) {
		attempts := &begins{}
		conn := c.Start(Config{Service: &Service{Unary: echo, Duplex: echoStream}, ClientStats: []stats.Handler{attempts},
			ServiceConfig: `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 3, "initialBackoff": "0.001s",
				"maxBackoff": "0.001s", "backoffMultiplier": 1, "retryableStatusCodes": ["INTERNAL"]}}]}`})
		// For the last attempt grpc-go returns a status, or io.EOF if the server was
		// quicker.
		err := conn.Invoke(c.Context(), unaryCall+"\n", request("x"), &pb.SimpleResponse{})
		c.Note("method: %v, %d attempts", err != nil, attempts.n.Swap(0))
		_, err = conn.UnaryCall(c.Context(), request("x"), grpc.ForceCodecV2(protoAs("\n")))
		c.Note("subtype: %v, %d attempts", err != nil, attempts.n.Swap(0))
		s, err := conn.NewStream(c.Context(), bidiDesc, duplexCall+"\n")
		c.Err("stream start", err)
		c.Note("stream: %v, %d attempts", s.RecvMsg(&pb.SimpleResponse{}) != nil, attempts.n.Swap(0))
	}},
	{3, "names of compressors that there are not", func(c *C) {
		conn := c.Start(Config{Service: noteFields(c, ":authority")})
		for _, field := range oddFields {
			if field != "" {
				noteFieldCalls(c, conn, field, grpc.UseCompressor(field))
			}
		}
	}},
}

// oddFields are values that HTTP/2 accepts, and others that it refuses.
var oddFields = []string{"", " ", "a b", " a", "a ", "a\tb", "é", "\xff", "a\xffb", "a%0Ab", "\u0085",
	"\n", "a\nb", "a\r\nb", "a\r", "\x00", "a\x00", "\x1b", "a\x7f"}

// oddSubtypes are names of registered codecs.
var oddSubtypes = []string{"interop odd", "interop\nodd", "interop\x00", "interop\xff"}

func init() {
	for _, name := range oddSubtypes {
		encoding.RegisterCodecV2(protoAs(name))
	}
}

// protoAs is protobuf's codec under another name.
type protoAs string

func (name protoAs) Name() string { return string(name) }

func (protoAs) Marshal(v any) (mem.BufferSlice, error) {
	return encoding.GetCodecV2("proto").Marshal(v)
}

func (protoAs) Unmarshal(data mem.BufferSlice, v any) error {
	return encoding.GetCodecV2("proto").Unmarshal(data, v)
}

// eventNames notes the types of a call's stats events.
type eventNames struct{ a *Actor }

func (e *eventNames) TagRPC(ctx context.Context, i *stats.RPCTagInfo) context.Context {
	e.a.Note("tag %q", i.FullMethodName)
	return ctx
}

func (e *eventNames) HandleRPC(_ context.Context, s stats.RPCStats) {
	switch s.(type) {
	case *stats.Begin, *stats.OutHeader, *stats.InHeader, *stats.End: // the refusal can precede the other events
		e.a.Note("%T", s)
	}
}

func (e *eventNames) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (e *eventNames) HandleConn(context.Context, stats.ConnStats)                       {}

// begins counts attempts.
type begins struct {
	eventNames
	n atomic.Int32
}

func (b *begins) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (b *begins) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.Begin); ok {
		b.n.Add(1)
	}
}

// noteFields returns a service whose handlers note the values of key, and echo streams.
func noteFields(c *C, key string) *Service {
	h := c.Named("handler")
	note := func(ctx context.Context) {
		md, _ := metadata.FromIncomingContext(ctx)
		for _, v := range md[key] {
			h.Note("%s %q", key, ownAgent.ReplaceAllString(v, ""))
		}
	}
	return &Service{
		Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			note(ctx)
			return echo(ctx, m)
		},
		Output: func(m *pb.StreamingOutputCallRequest, s outputServer) error { note(s.Context()); return nil },
		Duplex: echoStream,
	}
}

// ownAgent matches what an implementation appends to the user agent.
var ownAgent = regexp.MustCompile(`(grpc-go|nearcall)/\S+$`)

func echoStream(s duplexServer) error {
	for {
		m, err := s.Recv()
		if err != nil {
			return nil
		}
		if err := s.Send(&pb.StreamingOutputCallResponse{Payload: m.Payload}); err != nil {
			return err
		}
	}
}

// openEcho opens a stream. done notes whether it has survived the calls in between.
func openEcho(c *C, conn *Conn) (done func(label string)) {
	s, err := conn.FullDuplexCall(c.Context())
	c.Err("open", err)
	return func(label string) {
		c.Err(label, s.Send(in("x")))
		_, err := s.Recv()
		c.Err(label, err)
		c.Err(label, s.CloseSend())
		_, err = s.Recv()
		c.Err(label, err)
	}
}

func noteFieldCalls(c *C, conn *Conn, field string, opts ...grpc.CallOption) {
	label := fmt.Sprintf("%q", field)
	c.Named("handler").Note("--- %s", label)
	_, err := conn.UnaryCall(c.Context(), request("x"), opts...)
	noteRefusal(c.Actor, label, err)
	s, err := conn.StreamingOutputCall(c.Context(), in("x"), opts...)
	noteRefusal(c.Actor, label+" stream", err)
	if err == nil {
		_, err = s.Recv()
		noteRefusal(c.Actor, label+" recv", err)
	}
}

// noteStream opens a stream and receives its end.
func noteStream(c *C, conn *Conn, label, method string) {
	s, err := conn.NewStream(c.Context(), bidiDesc, method)
	c.Err(label+" start", err)
	if err == nil {
		c.Err(label+" close", s.CloseSend())
		noteRefusal(c.Actor, label+" recv", s.RecvMsg(&pb.SimpleResponse{}))
	}
}

// noteRefusal notes an error. It does not compare HTTP/2's text, which does not name the
// refused field.
func noteRefusal(a *Actor, label string, err error) {
	st := status.Convert(err)
	if text := st.Message(); st.Code() == codes.Internal && (strings.Contains(text, "RST_STREAM with error code: PROTOCOL_ERROR") || controlled.MatchString(text)) {
		a.Note("%s: Internal, for control characters", label)
		return
	}
	a.Err(label, err)
}

var controlled = regexp.MustCompile("^the (method|authority|user agent|content subtype) has control characters$")
