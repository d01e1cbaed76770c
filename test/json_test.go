package test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/nearcall/nearcall"
)

// writtenJSON is a codec whose messages are text that the test has written as JSON. Only the
// client of a test uses it, so the server decodes with its own.
type writtenJSON struct{}

func (writtenJSON) Name() string { return "json" }

func (writtenJSON) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(string))}, nil
}

func (writtenJSON) Unmarshal(data mem.BufferSlice, v any) error { return nil }

// A report is what a method of the service reports sees.
type report struct {
	ctx  chan context.Context // before it receives
	errs chan error           // of what it receives
}

// service returns a service whose requests have messages of google.protobuf.Any.
func (r *report) service() *grpc.ServiceDesc {
	receive := func(ctx context.Context, into func(any) error) error {
		r.ctx <- ctx
		err := into(new(spb.Status))
		r.errs <- err
		return err
	}
	return &grpc.ServiceDesc{
		ServiceName: "nearcall.test.Reports", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Put", Handler: func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			return new(emptypb.Empty), receive(ctx, dec)
		}}},
		Streams: []grpc.StreamDesc{{StreamName: "Puts", ClientStreams: true, ServerStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
			return receive(s.Context(), s.RecvMsg)
		}}},
	}
}

// A putting calls the service reports with a text, and returns the status' code. stream chooses
// the method.
type putting func(ctx context.Context, text string, stream bool) codes.Code

// eachWayOfJSON runs test over each way on which JSON reaches a server. r is what its
// service sees.
func eachWayOfJSON(t *testing.T, test func(t *testing.T, put putting, r *report)) {
	for _, network := range append(networks("tcp", "ws"), "unix", "inproc") {
		t.Run(network, func(t *testing.T) {
			r := &report{make(chan context.Context, 1), make(chan error, 1)}
			test(t, putsOverNetwork(t, network, r), r)
		})
	}
	for _, compressed := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP, compressed %t", compressed), func(t *testing.T) {
			r := &report{make(chan context.Context, 1), make(chan error, 1)}
			test(t, putsOverHTTP(t, compressed, r), r)
		})
	}
}

func putsOverNetwork(t *testing.T, network string, r *report) putting {
	srv := nearcall.NewServer()
	service := r.service()
	srv.RegisterService(service, nil)
	var conn *nearcall.ClientConn
	switch network {
	case "inproc":
		t.Cleanup(srv.Stop)
		conn = srv.Client()
	default:
		target := "ws://127.0.0.1:0/calls"
		if network != "ws" {
			target = targetFor(t, network)
		}
		lis := listen(t, target)
		start(t, srv, lis)
		var err error
		if conn, err = nearcall.NewClient(lis.Target(), over(network)...); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = conn.Close() })
	return func(ctx context.Context, text string, stream bool) codes.Code {
		json := grpc.ForceCodecV2(writtenJSON{})
		if !stream {
			return status.Code(conn.Invoke(ctx, "/nearcall.test.Reports/Put", text, new(string), json))
		}
		s, err := conn.NewStream(ctx, &service.Streams[0], "/nearcall.test.Reports/Puts", json)
		if err == nil {
			err = s.SendMsg(text)
		}
		if err == nil {
			err = s.RecvMsg(new(string))
		}
		if err == io.EOF {
			err = nil
		}
		return status.Code(err)
	}
}

func putsOverHTTP(t *testing.T, compressed bool, r *report) putting {
	srv := nearcall.NewServer()
	srv.RegisterService(r.service(), nil)
	lis := listen(t, "tcp:127.0.0.1:0")
	start(t, srv, lis)
	transport := new(http.Transport)
	t.Cleanup(transport.CloseIdleConnections)
	return func(ctx context.Context, text string, stream bool) codes.Code {
		body := []byte(text)
		if compressed {
			var b bytes.Buffer
			w := gzip.NewWriter(&b)
			_, _ = w.Write(body)
			_ = w.Close()
			body = b.Bytes()
		}
		method, kind, encoding := "Put", "application/json", "Content-Encoding"
		if stream {
			method, kind, encoding = "Puts", "application/connect+json", "Connect-Content-Encoding"
			flags := byte(0)
			if compressed {
				flags = 1
			}
			body = append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(body))), body...)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+lis.Addr().String()+"/nearcall.test.Reports/"+method, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", kind)
		if compressed {
			req.Header.Set(encoding, "gzip")
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return status.FromContextError(ctx.Err()).Code()
		}
		answer, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		switch {
		case bytes.Contains(answer, []byte(`"code":"invalid_argument"`)):
			return codes.InvalidArgument
		case bytes.Contains(answer, []byte(`"code"`)):
			t.Errorf("%s: %.300s", resp.Status, answer)
		}
		return codes.OK
	}
}

// Messages of google.protobuf.Any in others would take quadratic time to decode.
func TestDeeplyNestedJSONIsRefusedOnEachWay(t *testing.T) {
	anys := func(n int) string {
		return `{"details":[` + strings.Repeat(`{"@type":"/google.protobuf.Any","value":`, n) + "{}" + strings.Repeat("}", n) + "]}"
	}
	eachWayOfJSON(t, func(t *testing.T, put putting, r *report) {
		for _, stream := range []bool{false, true} {
			code, err := put(t.Context(), anys(97), stream), <-r.errs
			if <-r.ctx; code != codes.OK || err != nil {
				t.Errorf("100 deep: %v, %v", code, err)
			}
			code, err = put(t.Context(), anys(20_000), stream), <-r.errs
			<-r.ctx
			if code != codes.InvalidArgument || !strings.Contains(fmt.Sprint(err), "nested more than 100 deep") {
				t.Errorf("stream %t: the client gets %v, the handler %v", stream, code, err)
			}
		}
	})
}

// A pausing is a message type that calls a function when a message of it is made.
type pausing struct {
	protoreflect.MessageType
	made func()
}

func (p *pausing) New() protoreflect.Message {
	p.made()
	return p.MessageType.New()
}

// registerPausing registers a type with a list of google.protobuf.Any.
var registerPausing = sync.OnceValue(func() *pausing {
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("nearcall/test/pausing.proto"), Package: proto.String("nearcall.test"), Dependency: []string{"google/protobuf/any.proto"},
		MessageType: []*descriptorpb.DescriptorProto{{Name: proto.String("Pausing"), Field: []*descriptorpb.FieldDescriptorProto{{
			Name: proto.String("any"), Number: proto.Int32(1), TypeName: proto.String(".google.protobuf.Any"),
			Type: descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum(),
		}}}},
	}, protoregistry.GlobalFiles)
	if err != nil {
		panic(err)
	}
	p := &pausing{MessageType: dynamicpb.NewMessageType(file.Messages().Get(0))}
	if err := protoregistry.GlobalTypes.RegisterMessage(p); err != nil {
		panic(err)
	}
	return p
})

// The caller leaves while the server decodes what it has sent.
func TestTheEndOfACallEndsTheDecodingOfItsJSON(t *testing.T) {
	pausing := registerPausing()
	const text = `{"details":[{"@type":"/nearcall.test.Pausing","any":[{"@type":"/google.protobuf.Any","value":{}}]}]}`
	eachWayOfJSON(t, func(t *testing.T, put putting, r *report) {
		for _, stream := range []bool{false, true} {
			decoding, goOn := make(chan struct{}), make(chan struct{})
			pausing.made = func() { close(decoding); <-goOn }
			ctx, cancel := context.WithCancel(t.Context())
			code := make(chan codes.Code, 1)
			go func() { code <- put(ctx, text, stream) }()
			outcome(t, "the decoding", decoding)
			cancel()
			<-(<-r.ctx).Done()
			close(goOn)
			if err := <-r.errs; status.Code(err) != codes.Canceled {
				t.Errorf("stream %t: the handler gets %v", stream, err)
			}
			if code := <-code; code != codes.Canceled {
				t.Errorf("stream %t: the client gets %v", stream, code)
			}
		}
	})
}
