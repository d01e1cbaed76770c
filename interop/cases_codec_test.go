package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"

	epb "google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// sized returns a request whose encoding has n bytes.
func sized(n int) *pb.SimpleRequest {
	m := &pb.SimpleRequest{Payload: &pb.Payload{Body: make([]byte, max(0, n-20))}}
	for proto.Size(m) < n {
		m.Payload.Body = append(m.Payload.Body, 0)
	}
	return m
}

// limitCases are item 34.
var limitCases = []Case{
	{34, "the default limits, at their edge", func(c *C) {
		const limit = 4 << 20
		size := 0
		conn := c.Start(Config{Service: &Service{
			Unary: func(_ context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				if size == 0 {
					return reply("small"), nil
				}
				return &pb.SimpleResponse{Payload: sized(size).Payload}, nil
			},
			Duplex: func(s duplexServer) error {
				m, err := s.Recv()
				if err != nil {
					return err
				}
				return s.Send(&pb.StreamingOutputCallResponse{Payload: m.Payload})
			},
		}})
		for _, n := range []int{limit, limit + 1} {
			_, err := conn.UnaryCall(c.Context(), sized(n))
			c.Err(fmt.Sprintf("request of %d", n), err)
			size = n
			_, err = conn.UnaryCall(c.Context(), request("x"))
			c.Err(fmt.Sprintf("reply of %d", n), err)
			size = 0
			s, err := conn.FullDuplexCall(c.Context())
			c.Err("start", err)
			// nil or io.EOF: a server that refuses can reply before everything is sent.
			s.Send(&pb.StreamingOutputCallRequest{Payload: sized(n).Payload})
			_, err = s.Recv()
			c.Err(fmt.Sprintf("stream of %d", n), err)
		}
	}},
	{34, "limits of the server", func(c *C) {
		conn := c.Start(Config{Service: echoService(), ServerMaxRecv: 100, ServerMaxSend: 50})
		for _, n := range []int{50, 51, 100, 101} {
			_, err := conn.UnaryCall(c.Context(), sized(n))
			c.Err(fmt.Sprintf("unary %d", n), err)
			s, err := conn.FullDuplexCall(c.Context())
			c.Err("start", err)
			c.Err("send", s.Send(&pb.StreamingOutputCallRequest{Payload: sized(n).Payload}))
			_, err = s.Recv()
			c.Err(fmt.Sprintf("stream %d", n), err)
		}
	}},
	{34, "limits of the client, by default option and by call", func(c *C) {
		conn := c.Start(Config{Service: echoService(), CallOptions: []grpc.CallOption{grpc.MaxCallRecvMsgSize(50), grpc.MaxCallSendMsgSize(100)}})
		for _, n := range []int{50, 51, 100, 101} {
			_, err := conn.UnaryCall(c.Context(), sized(n))
			c.Err(fmt.Sprintf("unary %d", n), err)
			_, err = conn.UnaryCall(c.Context(), sized(n), grpc.MaxCallRecvMsgSize(1000), grpc.MaxCallSendMsgSize(1000))
			c.Err(fmt.Sprintf("unary %d, raised", n), err)
			s, err := conn.FullDuplexCall(c.Context())
			c.Err("start", err)
			c.Err("send", s.Send(&pb.StreamingOutputCallRequest{Payload: sized(n).Payload}))
			_, err = s.Recv()
			c.Err(fmt.Sprintf("stream %d", n), err)
		}
		_, err := conn.UnaryCall(c.Context(), &pb.SimpleRequest{}, grpc.MaxCallRecvMsgSize(0), grpc.MaxCallSendMsgSize(0))
		c.Err("nothing at all", err)
		_, err = conn.UnaryCall(c.Context(), request("x"), grpc.MaxCallSendMsgSize(0))
		c.Err("something", err)
	}},
	{34, "a stream after a message was too large", func(c *C) {
		h := c.Named("handler")
		over := c.Gate()
		conn := c.Start(Config{ServerMaxSend: 50, Service: &Service{Duplex: func(s duplexServer) error {
			defer over.Open()
			h.Err("send", s.Send(&pb.StreamingOutputCallResponse{Payload: sized(100).Payload}))
			h.Err("a small one", s.Send(out("x")))
			return nil
		}}})
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		_, err = s.Recv()
		c.Err("recv", err)
		_, err = s.Recv()
		c.Err("recv", err)
		over.Wait()
	}},
	{34, "limits from the service config", func(c *C) {
		conn := c.Start(Config{Service: echoService(),
			ServiceConfig: `{"methodConfig":[{"name":[{}],"maxRequestMessageBytes":100,"maxResponseMessageBytes":50}]}`})
		for _, n := range []int{50, 51, 101} {
			_, err := conn.UnaryCall(c.Context(), sized(n))
			c.Err(fmt.Sprintf("unary %d", n), err)
		}
	}},
	{34, "with another codec the codec's size counts", func(c *C) {
		raw := c.Raw("raw").Unary("Call", func(_ context.Context, dec func(any) error) (any, error) {
			var m map[string]string
			return map[string]string{"answer": strings.Repeat("a", 50)}, dec(&m)
		})
		conn := c.Start(Config{Register: []func(grpc.ServiceRegistrar){raw.Register}, ServerMaxRecv: 40})
		var got map[string]string
		c.Err("small", conn.Invoke(c.Context(), "/raw/Call", map[string]string{"k": "v"}, &got, grpc.CallContentSubtype("interop-json")))
		c.Note("%v", got)
		c.Err("large", conn.Invoke(c.Context(), "/raw/Call", map[string]string{"k": strings.Repeat("v", 50)}, &got, grpc.CallContentSubtype("interop-json")))
		c.Err("large reply", conn.Invoke(c.Context(), "/raw/Call", map[string]string{}, &got, grpc.CallContentSubtype("interop-json"), grpc.MaxCallRecvMsgSize(10)))
	}},
}

// jsonCodec is registered under its own content subtype.
type jsonCodec struct{}

func (jsonCodec) Name() string                       { return "interop-json" }
func (jsonCodec) Marshal(v any) ([]byte, error)      { return json.Marshal(v) }
func (jsonCodec) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }

func init() { encoding.RegisterCodec(jsonCodec{}) }

// sizes notes the sizes of messages.
type sizes struct{ *Actor }

func (sizes) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (sizes) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (sizes) HandleConn(context.Context, stats.ConnStats)                       {}
func (s sizes) HandleRPC(_ context.Context, e stats.RPCStats) {
	switch e := e.(type) {
	case *stats.OutPayload:
		s.Note("out: %d", e.Length)
	case *stats.InPayload:
		s.Note("in: %d", e.Length)
	}
}

// onceCodec counts the messages that it encodes.
type onceCodec struct {
	name  string
	count *atomic.Int32
}

func (o onceCodec) Name() string { return o.name }
func (o onceCodec) Marshal(v any) (mem.BufferSlice, error) {
	o.count.Add(1)
	b, err := proto.Marshal(v.(proto.Message))
	return mem.BufferSlice{mem.SliceBuffer(b)}, err
}
func (onceCodec) Unmarshal(data mem.BufferSlice, v any) error {
	return proto.Unmarshal(data.Materialize(), v.(proto.Message))
}

// rawCodec passes bytes through.
type rawCodec struct{ name string }

func (r rawCodec) Name() string { return r.name }
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("rawCodec: cannot marshal %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(bytes.Clone(*b))}, nil
}
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("rawCodec: cannot unmarshal %T", v)
	}
	*b = data.Materialize()
	return nil
}

// brokenCodec fails to marshal and to unmarshal.
type brokenCodec struct{ marshal, unmarshal error }

func (brokenCodec) Name() string { return "proto" }
func (b brokenCodec) Marshal(v any) (mem.BufferSlice, error) {
	if b.marshal != nil {
		return nil, b.marshal
	}
	return encoding.GetCodecV2("proto").Marshal(v)
}
func (b brokenCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if b.unmarshal != nil {
		return b.unmarshal
	}
	return encoding.GetCodecV2("proto").Unmarshal(data, v)
}

// oldPayload and oldRequest are SimpleRequest as golang/protobuf 1.3 would generate it.
type oldPayload struct {
	Type int32  `protobuf:"varint,1,opt,name=type,proto3"`
	Body []byte `protobuf:"bytes,2,opt,name=body,proto3"`
}

func (m *oldPayload) Reset()         { *m = oldPayload{} }
func (m *oldPayload) String() string { return fmt.Sprintf("%q", m.Body) }
func (*oldPayload) ProtoMessage()    {}

type oldRequest struct {
	Payload *oldPayload `protobuf:"bytes,3,opt,name=payload,proto3"`
}

func (m *oldRequest) Reset()         { *m = oldRequest{} }
func (m *oldRequest) String() string { return fmt.Sprint(m.Payload) }
func (*oldRequest) ProtoMessage()    {}

type oldResponse struct {
	Payload *oldPayload `protobuf:"bytes,1,opt,name=payload,proto3"`
}

func (m *oldResponse) Reset()         { *m = oldResponse{} }
func (m *oldResponse) String() string { return fmt.Sprint(m.Payload) }
func (*oldResponse) ProtoMessage()    {}

// ownMessage marshals itself, as gogo's messages do. Reflection does not see its state.
type ownMessage struct{ text string }

func (m *ownMessage) Reset()         { *m = ownMessage{} }
func (m *ownMessage) String() string { return m.text }
func (*ownMessage) ProtoMessage()    {}
func (m *ownMessage) Marshal() ([]byte, error) {
	var inner []byte
	inner = protowire.AppendTag(inner, 2, protowire.BytesType)
	inner = protowire.AppendString(inner, m.text)
	out := protowire.AppendTag(nil, 3, protowire.BytesType)
	return protowire.AppendBytes(out, inner), nil
}
func (m *ownMessage) Unmarshal(b []byte) error {
	m.text = fmt.Sprintf("%x", b)
	return nil
}

// codecCases are items 35 to 37.
var codecCases = []Case{
	{35, "dynamic messages on the client", func(c *C) {
		conn := c.Start(Config{Service: echoService()})
		req := dynamicpb.NewMessage((&pb.SimpleRequest{}).ProtoReflect().Descriptor())
		proto.Merge(req, request("dynamic"))
		got := dynamicpb.NewMessage((&pb.SimpleResponse{}).ProtoReflect().Descriptor())
		c.Err("invoke", conn.Invoke(c.Context(), unaryCall, req, got))
		c.Msg("got", got)
		s, err := conn.NewStream(c.Context(), bidiDesc, duplexCall)
		c.Err("start", err)
		c.Err("send", s.SendMsg(req)) // a different message type on each side: only the codec matters
		c.Err("recv", s.RecvMsg(got))
		c.Msg("got", got)
	}},
	{35, "dynamic messages on the server", func(c *C) {
		h := c.Named("handler")
		desc := (&pb.SimpleRequest{}).ProtoReflect().Descriptor()
		raw := c.Raw("raw").Unary("Call", func(_ context.Context, dec func(any) error) (any, error) {
			m := dynamicpb.NewMessage(desc)
			err := dec(m)
			h.Msg("got", m)
			return m, err
		}).Stream("Stream", bidiDesc, func(s grpc.ServerStream) error {
			m := dynamicpb.NewMessage(desc)
			h.Err("recv", s.RecvMsg(m))
			return s.SendMsg(m)
		})
		conn := c.Start(Config{Register: []func(grpc.ServiceRegistrar){raw.Register}})
		got := &pb.SimpleRequest{}
		c.Err("invoke", conn.Invoke(c.Context(), "/raw/Call", request("x"), got))
		c.Msg("got", got)
		s, err := conn.NewStream(c.Context(), bidiDesc, "/raw/Stream")
		c.Err("start", err)
		c.Err("send", s.SendMsg(request("y")))
		c.Err("recv", s.RecvMsg(got))
		c.Msg("got", got)
	}},
	{35, "raw frames on the client", func(c *C) {
		conn := c.Start(Config{Service: echoService()})
		for _, name := range []string{"proto", "interop-raw", ""} {
			req, got := marshal(request("raw")), []byte(nil)
			c.Err("invoke", conn.Invoke(c.Context(), unaryCall, &req, &got, grpc.ForceCodecV2(rawCodec{name})))
			c.Note("%s %x", name, got)
			s, err := conn.NewStream(c.Context(), bidiDesc, duplexCall, grpc.ForceCodecV2(rawCodec{name}))
			c.Err("start", err)
			c.Err("send", s.SendMsg(&req))
			for i := range req {
				req[i] = 0xff
			}
			c.Err("recv", s.RecvMsg(&got))
			c.Note("%x", got)
		}
		bad, got := []byte("\xff\xff\xff"), []byte(nil)
		c.Err("garbage", conn.Invoke(c.Context(), unaryCall, &bad, &got, grpc.ForceCodecV2(rawCodec{"proto"})))
		c.Err("a message", conn.Invoke(c.Context(), unaryCall, request("x"), &got, grpc.ForceCodecV2(rawCodec{"proto"})))
	}},
	{35, "each message is encoded once", func(c *C) {
		client, server := onceCodec{"once-client", new(atomic.Int32)}, onceCodec{"once-server", new(atomic.Int32)}
		note := func(what string, err error) {
			c.Err(what, err)
			c.Note("%s: %d by the client, %d by the server", what, client.count.Swap(0), server.count.Swap(0))
		}
		s := newScript(c)
		service := s.service()
		service.Duplex = echoService().Duplex
		for i, limit := range []int{0, 100_000, 0} {
			cfg := Config{Service: service, ServerCodec: server, ServerMaxSend: limit, ServiceConfig: retried("", "")}
			if i == 2 { // which are told of sizes
				cfg.ClientStats, cfg.ServerStats = []stats.Handler{sizes{c.Named("client's stats")}}, []stats.Handler{sizes{c.Named("server's stats")}}
			}
			conn := c.Start(cfg)
			opts := []grpc.CallOption{grpc.ForceCodecV2(client)}
			if limit > 0 {
				opts = append(opts, grpc.MaxCallSendMsgSize(limit))
			}
			for _, size := range []int{10, 50_000} {
				_, err := conn.UnaryCall(c.Context(), sized(size), opts...)
				note("unary", err)
			}
			s.play(fails(errAgain), fails(errAgain))
			_, err := conn.UnaryCall(c.Context(), sized(50_000), opts...)
			note("retried", err)
			s.play()
			stream, err := conn.FullDuplexCall(c.Context(), opts...)
			c.Err("start", err)
			c.Err("send", stream.Send(&pb.StreamingOutputCallRequest{Payload: sized(50_000).Payload}))
			_, err = stream.Recv()
			note("stream", err)
		}
	}},
	{35, "raw frames on the server: a proxy", func(c *C) {
		h := c.Named("proxy")
		back := c.Start(Config{Service: echoService()})
		proxy := c.Start(Config{ServerCodec: rawCodec{"interop-raw"}, Unknown: func(_ any, s grpc.ServerStream) error {
			m, _ := grpc.MethodFromServerStream(s)
			var req, rep []byte
			if err := s.RecvMsg(&req); err != nil {
				return err
			}
			h.Note("%s %x", m, req)
			if err := back.Invoke(s.Context(), m, &req, &rep, grpc.ForceCodecV2(rawCodec{"proto"})); err != nil {
				return err
			}
			return s.SendMsg(&rep)
		}})
		m, err := proxy.UnaryCall(c.Context(), request("through"))
		c.Err("unary", err)
		c.Msg("got", m)
		_, err = proxy.UnaryCall(c.Context(), request("xxxx"), grpc.MaxCallRecvMsgSize(1))
		c.Err("too large", err)
		err = proxy.Invoke(c.Context(), "/none/Call", request("x"), &pb.Empty{})
		c.Err("unknown", err)
	}},
	{35, "garbage from the server", func(c *C) {
		rep := []byte("\xff\xff")
		conn := c.Start(Config{ServerCodec: rawCodec{"interop-raw"}, Unknown: func(_ any, s grpc.ServerStream) error { return s.SendMsg(&rep) }})
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		_, err = s.Recv()
		c.Err("stream", err)
	}},
	{35, "one message read as another", func(c *C) {
		h := c.Named("handler")
		conn := c.Start(Config{Service: &Service{
			Empty: func(_ context.Context, m *pb.Empty) (*pb.Empty, error) { h.Msg("got", m); return m, nil },
			Unary: func(_ context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				h.Msg("got", m)
				return reply("x"), nil
			},
		}})
		got := &pb.SimpleRequest{}
		c.Err("unknown fields there and back", conn.Invoke(c.Context(), emptyCall, request("kept"), got))
		c.Msg("got", got)
		c.Note("%s", got.GetPayload().GetBody())
		c.Err("wrong wire types", conn.Invoke(c.Context(), unaryCall, &pb.SimpleResponse{Payload: payload("p"), Username: "u"}, got))
		c.Msg("got", got)
	}},
	{35, "old protobuf messages", func(c *C) {
		conn := c.Start(Config{Service: echoService()})
		got := &oldResponse{}
		c.Err("invoke", conn.Invoke(c.Context(), unaryCall, &oldRequest{Payload: &oldPayload{Body: []byte("old")}}, got))
		c.Note("%v", got)
		c.Err("to a new reply", conn.Invoke(c.Context(), unaryCall, &oldRequest{Payload: &oldPayload{Body: []byte("old")}}, &pb.SimpleResponse{}))
		own := &ownMessage{}
		c.Err("marshals itself", conn.Invoke(c.Context(), unaryCall, &ownMessage{"own"}, own))
		c.Note("%v", own)
	}},
	{35, "old protobuf messages on both sides", func(c *C) {
		h := c.Named("handler")
		raw := c.Raw("raw").Unary("Old", func(_ context.Context, dec func(any) error) (any, error) {
			m := &oldRequest{}
			err := dec(m)
			h.Note("%v", m)
			return &oldResponse{Payload: m.Payload}, err
		}).Unary("Own", func(_ context.Context, dec func(any) error) (any, error) {
			m := &ownMessage{}
			err := dec(m)
			h.Note("%v", m)
			return &ownMessage{"answer"}, err
		})
		conn := c.Start(Config{Register: []func(grpc.ServiceRegistrar){raw.Register}})
		req, old, own := &oldRequest{Payload: &oldPayload{Body: []byte("old")}}, &oldResponse{}, &ownMessage{}
		c.Err("old", conn.Invoke(c.Context(), "/raw/Old", req, old))
		c.Note("%v", old)
		copy(req.Payload.Body, "XXX")
		c.Note("%v", old)
		c.Err("own", conn.Invoke(c.Context(), "/raw/Own", &ownMessage{"question"}, own))
		c.Note("%v", own)
	}},
	{35, "a registered codec and plain Go values", func(c *C) {
		h := c.Named("handler")
		type point struct{ X, Y int }
		raw := c.Raw("raw").Unary("Call", func(ctx context.Context, dec func(any) error) (any, error) {
			var p struct{ X float64 }
			err := dec(&p)
			if err == nil {
				h.Note("%v", p)
			}
			return map[string]any{"X": p.X + 1, "Y": []int{1}[0], "z": nil}, err
		}).Stream("Stream", bidiDesc, func(s grpc.ServerStream) error {
			for {
				var v any
				if err := s.RecvMsg(&v); err != nil {
					return nil
				}
				s.SendMsg([]any{v, v})
			}
		})
		conn := c.Start(Config{Register: []func(grpc.ServiceRegistrar){raw.Register}})
		var got point
		c.Err("invoke", conn.Invoke(c.Context(), "/raw/Call", point{1, 2}, &got, grpc.CallContentSubtype("interop-json")))
		c.Note("%v", got)
		c.Err("upper case", conn.Invoke(c.Context(), "/raw/Call", point{1, 2}, &got, grpc.CallContentSubtype("INTEROP-JSON")))
		c.Err("as protobuf", conn.Invoke(c.Context(), "/raw/Call", point{1, 2}, &got))
		c.Err("cannot be marshalled", conn.Invoke(c.Context(), "/raw/Call", func() {}, &got, grpc.CallContentSubtype("interop-json")))
		s, err := conn.NewStream(c.Context(), bidiDesc, "/raw/Stream", grpc.CallContentSubtype("interop-json"))
		c.Err("start", err)
		for _, v := range []any{1, "two", nil, map[string]int{"k": 3}} {
			c.Err("send", s.SendMsg(v))
			var got any
			c.Err("recv", s.RecvMsg(&got))
			c.Note("%v", got)
		}
	}},
	{35, "codecs that the server does not know", func(c *C) {
		conn := c.Start(Config{Service: echoService()})
		_, err := conn.UnaryCall(c.Context(), request("x"), grpc.ForceCodecV2(renamed{"interop-unheard"}))
		c.Err("forced", err)
		_, err = conn.UnaryCall(c.Context(), request("x"), grpc.CallContentSubtype("interop-unheard"))
		c.Err("by subtype", err)
		_, err = conn.UnaryCall(c.Context(), request("x"), grpc.ForceCodec(jsonCodec{}))
		c.Err("protobuf as JSON", err)
	}},
	{35, "codecs that fail", func(c *C) {
		plain, st := errors.New("broken"), status.Error(3, "a status")
		conn := c.Start(Config{Service: echoService()})
		for _, b := range []brokenCodec{{marshal: plain}, {unmarshal: plain}, {marshal: st}, {unmarshal: st}} {
			_, err := conn.UnaryCall(c.Context(), request("x"), grpc.ForceCodecV2(b))
			c.Err("client", err)
			srv := c.Start(Config{Service: echoService(), ServerCodec: b})
			_, err = srv.UnaryCall(c.Context(), request("x"))
			c.Err("server", err)
			s, err := srv.FullDuplexCall(c.Context())
			c.Err("start", err)
			s.Send(in("x"))
			_, err = s.Recv()
			c.Err("server stream", err)
		}
	}},
	{35, "a copy is what marshalling would make of it", func(c *C) {
		h := c.Named("handler")
		raw := c.Raw("raw")
		for name, m := range map[string]proto.Message{"Struct": &structpb.Struct{}, "File": &descriptorpb.FileDescriptorProto{}, "Request": &pb.SimpleRequest{}} {
			raw.Unary(name, func(_ context.Context, dec func(any) error) (any, error) {
				m := proto.Clone(m)
				err := dec(m)
				h.Msg(name, m)
				if r, ok := m.(*pb.SimpleRequest); ok && r.Payload != nil {
					h.Note("body nil %v", r.Payload.Body == nil)
				}
				if f, ok := m.(*descriptorpb.FileDescriptorProto); ok {
					h.Note("nil slices %v %v, options %v", f.Dependency == nil, f.MessageType == nil, f.Options != nil)
				}
				return m, err
			})
		}
		conn := c.Start(Config{Register: []func(grpc.ServiceRegistrar){raw.Register}})
		try := func(name string, m, got proto.Message) {
			c.Err(name, conn.Invoke(c.Context(), "/raw/"+name, m, got))
			c.Msg("got", got)
			c.Note("equal %v", proto.Equal(m, got))
		}
		st, _ := structpb.NewStruct(map[string]any{"nil": nil, "n": 0.0, "s": "", "l": []any{}, "m": map[string]any{"deep": []any{1, "x", true}}})
		st.Fields["inf"] = structpb.NewNumberValue(math.Inf(-1))
		st.Fields["zero"] = structpb.NewNumberValue(math.Copysign(0, -1))
		st.Fields["unset"] = &structpb.Value{}
		st.Fields["nil value"] = nil
		try("Struct", st, &structpb.Struct{})
		try("Request", &pb.SimpleRequest{Payload: &pb.Payload{Body: []byte{}, Type: 77}, ResponseCompressed: &pb.BoolValue{}}, &pb.SimpleRequest{})
		unknown := request("u")
		unknown.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 5))
		try("Request", unknown, &pb.SimpleRequest{})
		try("File", &descriptorpb.FileDescriptorProto{Name: proto.String(""), Dependency: []string{}, Options: &descriptorpb.FileOptions{},
			MessageType: []*descriptorpb.DescriptorProto{nil, {}}, PublicDependency: []int32{0, -1, math.MaxInt32}}, &descriptorpb.FileDescriptorProto{})
	}},
	{35, "compression asked for", func(c *C) {
		conn := c.Start(Config{Service: echoService()})
		m, err := conn.UnaryCall(c.Context(), request("gzip"), grpc.UseCompressor("gzip"))
		c.Err("gzip", err)
		c.Msg("got", m)
		_, err = conn.UnaryCall(c.Context(), request("identity"), grpc.UseCompressor("identity"))
		c.Err("identity", err)
		_, err = conn.UnaryCall(c.Context(), request("x"), grpc.UseCompressor("interop-unknown"))
		c.Err("unknown", err)
		s, err := conn.FullDuplexCall(c.Context(), grpc.UseCompressor("gzip"))
		c.Err("start", err)
		c.Err("send", s.Send(in("gzip")))
		r, err := s.Recv()
		c.Err("recv", err)
		c.Msg("got", r)
	}},

	{36, "requests that marshalling refuses", func(c *C) {
		var ran atomic.Int32
		raw := c.Raw("raw").Unary("Call", func(_ context.Context, dec func(any) error) (any, error) {
			err := dec(&pb.Empty{})
			if err == nil {
				ran.Add(1)
			}
			return &pb.Empty{}, err
		}).Stream("Stream", bidiDesc, func(s grpc.ServerStream) error {
			err := s.RecvMsg(&pb.Empty{})
			if err == nil {
				ran.Add(1)
			}
			return err
		})
		conn := c.Start(Config{Register: []func(grpc.ServiceRegistrar){raw.Register}})
		for name, m := range refused() {
			c.Note("--- %s", name)
			c.Err("unary", conn.Invoke(c.Context(), "/raw/Call", m, &pb.Empty{}))
			s, err := conn.NewStream(c.Context(), bidiDesc, "/raw/Stream")
			c.Err("start", err)
			c.Err("send", s.SendMsg(m))
			c.Err("send again", s.SendMsg(&pb.Empty{}))
			c.Code("recv", s.RecvMsg(&pb.Empty{}))
		}
		c.Note("received %d", ran.Load())
	}},
	{36, "replies that marshalling refuses", func(c *C) {
		h := c.Named("handler")
		var r proto.Message
		sent := make(chan struct{}, 1)
		raw := c.Raw("raw").Unary("Call", func(_ context.Context, dec func(any) error) (any, error) {
			return r, dec(&pb.Empty{})
		}).Stream("Stream", bidiDesc, func(s grpc.ServerStream) error {
			s.RecvMsg(&pb.Empty{})
			h.Err("send", s.SendMsg(r))
			sent <- struct{}{}
			return nil
		})
		conn := c.Start(Config{Register: []func(grpc.ServiceRegistrar){raw.Register}})
		for name, m := range refused() {
			c.Note("--- %s", name)
			r = m
			c.Err("unary", conn.Invoke(c.Context(), "/raw/Call", &pb.Empty{}, &pb.Empty{}))
			s, err := conn.NewStream(c.Context(), bidiDesc, "/raw/Stream")
			c.Err("start", err)
			c.Err("send", s.SendMsg(&pb.Empty{}))
			c.Err("recv", s.RecvMsg(&pb.Empty{}))
			c.Wait(sent)
		}
	}},
	{36, "what unmarshalling refuses", func(c *C) {
		// One side sends raw bytes that the other cannot unmarshal.
		conn := c.Start(Config{Service: &Service{Unary: echo, Empty: func(_ context.Context, m *pb.Empty) (*pb.Empty, error) { return m, nil }}, Register: []func(grpc.ServiceRegistrar){
			c.Raw("raw").Unary("NamePart", func(_ context.Context, dec func(any) error) (any, error) {
				return &pb.Empty{}, dec(&descriptorpb.UninterpretedOption_NamePart{})
			}).Register}})
		badUTF8 := protowire.AppendBytes(protowire.AppendTag(nil, 7, protowire.BytesType),
			protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), "\xff"))
		var got []byte
		c.Err("invalid UTF-8", conn.Invoke(c.Context(), unaryCall, &badUTF8, &got, grpc.ForceCodecV2(rawCodec{"proto"})))
		empty := []byte{}
		c.Err("missing required", conn.Invoke(c.Context(), "/raw/NamePart", &empty, &got, grpc.ForceCodecV2(rawCodec{"proto"})))
		c.Err("empty into required, both messages", conn.Invoke(c.Context(), "/raw/NamePart", &pb.Empty{}, &pb.Empty{}))
		c.Err("empty reply into required", conn.Invoke(c.Context(), emptyCall, &pb.Empty{}, &descriptorpb.UninterpretedOption_NamePart{}))
	}},
	{36, "what protobuf does not check", func(c *C) {
		h := c.Named("handler")
		conn := c.Start(Config{Register: []func(grpc.ServiceRegistrar){
			c.Raw("raw").Unary("Call", func(_ context.Context, dec func(any) error) (any, error) {
				m := &descriptorpb.FileDescriptorProto{}
				err := dec(m)
				h.Note("%q", m.GetName())
				return m, err
			}).Register}})
		got := &descriptorpb.FileDescriptorProto{}
		c.Err("proto2 string", conn.Invoke(c.Context(), "/raw/Call", &descriptorpb.FileDescriptorProto{Name: proto.String("\xff")}, got))
		c.Note("%q", got.GetName())
	}},

	{37, "SetSendCompressor and PreparedMsg", func(c *C) {
		h := c.Named("handler")
		// A foreign stream may refuse these with a clear error. It must not panic, hang or
		// pretend.
		fair := func(err error) bool { return err == nil || err.Error() != "" }
		conn := c.Start(Config{Service: &Service{
			Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				h.Note("SetSendCompressor %v", fair(grpc.SetSendCompressor(ctx, "gzip")))
				_, err := grpc.ClientSupportedCompressors(ctx)
				h.Note("ClientSupportedCompressors %v", fair(err))
				return echo(ctx, m)
			},
			Duplex: func(s duplexServer) error {
				var p grpc.PreparedMsg
				err := p.Encode(s, out("prepared"))
				h.Note("Encode %v", fair(err))
				if err != nil {
					return s.Send(out("prepared"))
				}
				return s.SendMsg(&p)
			},
		}})
		m, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
		c.Msg("got", m)
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		r, err := s.Recv()
		c.Err("recv", err)
		c.Msg("got", r)
	}},
}

// renamed is the protobuf codec under another name.
type renamed struct{ name string }

func (r renamed) Name() string { return r.name }
func (renamed) Marshal(v any) (mem.BufferSlice, error) {
	return encoding.GetCodecV2("proto").Marshal(v)
}
func (renamed) Unmarshal(data mem.BufferSlice, v any) error {
	return encoding.GetCodecV2("proto").Unmarshal(data, v)
}

// refused yields messages that cannot be marshalled.
func refused() func(func(string, proto.Message) bool) {
	bad := "\xff"
	return func(yield func(string, proto.Message) bool) {
		_ = yield("missing required", &descriptorpb.UninterpretedOption_NamePart{}) &&
			yield("one of two required", &descriptorpb.UninterpretedOption_NamePart{NamePart: proto.String("x")}) &&
			yield("missing required, nested", &descriptorpb.UninterpretedOption{Name: []*descriptorpb.UninterpretedOption_NamePart{{}}}) &&
			yield("invalid UTF-8", &pb.SimpleResponse{Username: bad}) &&
			yield("invalid UTF-8, nested", &pb.SimpleRequest{ResponseStatus: &pb.EchoStatus{Message: bad}}) &&
			yield("invalid UTF-8, map value", &epb.ErrorInfo{Metadata: map[string]string{"k": bad}}) &&
			yield("invalid UTF-8, map key", &epb.ErrorInfo{Metadata: map[string]string{bad: "v"}}) &&
			yield("invalid UTF-8, oneof", structpb.NewStringValue(bad)) &&
			yield("invalid UTF-8, repeated", &epb.DebugInfo{StackEntries: []string{"good", bad}}) &&
			yield("invalid UTF-8, wrapper", wrapperspb.String(bad))
	}
}
