package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall"
	nearconnect "github.com/nearcall/nearcall/connect"
	pb "github.com/nearcall/nearcall/interop/connect/conformancepb"
	"github.com/nearcall/nearcall/interop/connect/conformancepb/conformancepbconnect"
)

// call makes the call that req describes, over conn. The error says why it cannot be made.
func call(conn *nearcall.ClientConn, req *pb.ClientCompatRequest) (*pb.ClientResponseResult, error) {
	opts, err := optionsOf(req)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if req.TimeoutMs != nil {
		var over context.CancelFunc
		ctx, over = context.WithTimeout(ctx, time.Duration(*req.TimeoutMs)*time.Millisecond)
		defer over()
	}
	ctx, info := connect.NewClientContext(ctx)
	for _, h := range req.RequestHeaders {
		for _, v := range h.Value {
			info.RequestHeader().Add(h.Name, v)
		}
	}
	c := &caller{
		ClientCompatRequest: req,
		client:              conformancepbconnect.NewConformanceServiceClient(connect.NewClient(nearconnect.NewTransport(conn, opts...))),
		cancel:              cancel,
		result:              new(pb.ClientResponseResult),
	}
	if err := c.run(ctx); err != nil {
		return nil, err
	}
	header := info.ResponseHeader()
	c.result.ResponseHeaders, c.result.ResponseTrailers = headersOf(header), headersOf(info.ResponseTrailer())
	for key, want := range map[string]string{"X-Request-Codec": req.Codec.String(), "X-Request-Encoding": req.Compression.String()} {
		want = strings.ToLower(want[strings.IndexByte(want, '_')+1:])
		if got := header.Get(key); got != "" && got != want { // only conformanceserver -connect says it
			return nil, fmt.Errorf("the server's %s is %s, want %s", key, got, want)
		}
	}
	return c.result, nil
}

func optionsOf(req *pb.ClientCompatRequest) (opts []grpc.CallOption, _ error) {
	switch req.Codec {
	case pb.Codec_CODEC_PROTO:
	case pb.Codec_CODEC_JSON:
		opts = append(opts, grpc.ForceCodecV2(nearconnect.Codec(connectproto.NewJSONCodec())))
	default:
		return nil, fmt.Errorf("there is no codec for %v", req.Codec)
	}
	switch req.Compression {
	case pb.Compression_COMPRESSION_UNSPECIFIED, pb.Compression_COMPRESSION_IDENTITY:
	case pb.Compression_COMPRESSION_GZIP:
		opts = append(opts, grpc.UseCompressor(gzip.Name))
	default:
		return nil, fmt.Errorf("there is no compressor for %v", req.Compression)
	}
	if n := req.MessageReceiveLimit; n > 0 {
		opts = append(opts, grpc.MaxCallRecvMsgSize(int(n)))
	}
	return opts, nil
}

// A caller makes one call.
type caller struct {
	*pb.ClientCompatRequest
	client conformancepbconnect.ConformanceServiceClient
	cancel context.CancelFunc // ends the call
	result *pb.ClientResponseResult
}

func (c *caller) run(ctx context.Context) error {
	switch m := c.GetMethod(); m {
	case "Unary":
		return unary(ctx, c, c.client.Unary)
	case "IdempotentUnary":
		return unary(ctx, c, c.client.IdempotentUnary)
	case "Unimplemented":
		return unary(ctx, c, c.client.Unimplemented)
	case "ServerStream":
		return c.serverStream(ctx)
	case "ClientStream":
		return c.clientStream(ctx)
	case "BidiStream":
		return c.bidiStream(ctx)
	default:
		return fmt.Errorf("there is no method %s", m)
	}
}

func unary[In, Out any](ctx context.Context, c *caller, method func(context.Context, *In) (*Out, error)) error {
	in := new(In)
	if err := c.onlyRequest(any(in).(proto.Message)); err != nil {
		return err
	}
	if ms, ok := c.afterCloseSend(); ok {
		defer time.AfterFunc(ms, c.cancel).Stop()
	}
	out, err := method(ctx, in)
	if err != nil {
		c.failed(err)
	} else if p, ok := any(out).(interface{ GetPayload() *pb.ConformancePayload }); ok {
		c.received(p.GetPayload())
	}
	return nil
}

func (c *caller) serverStream(ctx context.Context) error {
	in := new(pb.ServerStreamRequest)
	if err := c.onlyRequest(in); err != nil {
		return err
	}
	stream, err := c.client.ServerStream(ctx, in)
	if err != nil {
		c.failed(err)
		return nil
	}
	c.closed()
	for {
		out, err := stream.Receive()
		if err != nil {
			c.failed(err)
			return stream.Close()
		}
		c.received(out.Payload)
	}
}

func (c *caller) clientStream(ctx context.Context) error {
	stream, err := c.client.ClientStream(ctx)
	if err != nil {
		return err
	}
	for i, m := range c.RequestMessages {
		in := new(pb.ClientStreamRequest)
		if err := m.UnmarshalTo(in); err != nil {
			return err
		}
		c.delay()
		if err := stream.Send(in); err != nil {
			c.result.NumUnsentRequests = int32(len(c.RequestMessages) - i)
			break // CloseAndReceive returns the reason
		}
	}
	if c.beforeCloseSend() {
		c.cancel()
	} else if ms, ok := c.afterCloseSend(); ok {
		defer time.AfterFunc(ms, c.cancel).Stop()
	}
	out, err := stream.CloseAndReceive()
	if err != nil {
		c.failed(err)
	} else {
		c.received(out.Payload)
	}
	return nil
}

func (c *caller) bidiStream(ctx context.Context) error {
	stream, err := c.client.BidiStream(ctx)
	if err != nil {
		return err
	}
	receive := func() bool {
		out, err := stream.Receive()
		if err != nil {
			c.failed(err)
			return false
		}
		c.received(out.Payload)
		return true
	}
	more := true // to receive
	for i, m := range c.RequestMessages {
		in := new(pb.BidiStreamRequest)
		if err := m.UnmarshalTo(in); err != nil {
			return err
		}
		c.delay()
		if err := stream.Send(in); err != nil {
			c.result.NumUnsentRequests = int32(len(c.RequestMessages) - i)
			break // Receive returns the reason
		}
		if c.StreamType == pb.StreamType_STREAM_TYPE_FULL_DUPLEX_BIDI_STREAM {
			if more = receive(); !more {
				break
			}
		}
	}
	if c.beforeCloseSend() {
		c.cancel()
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	c.closed()
	for more {
		more = receive()
	}
	return stream.Close()
}

// onlyRequest reads the request of a method that takes one.
func (c *caller) onlyRequest(in proto.Message) error {
	if n := len(c.RequestMessages); n != 1 {
		return fmt.Errorf("the method takes one request, not %d", n)
	}
	return c.RequestMessages[0].UnmarshalTo(in)
}

func (c *caller) delay() { time.Sleep(time.Duration(c.RequestDelayMs) * time.Millisecond) }

// beforeCloseSend reports whether the call is cancelled before its last request is known to be the last.
func (c *caller) beforeCloseSend() bool {
	_, ok := c.Cancel.GetCancelTiming().(*pb.ClientCompatRequest_Cancel_BeforeCloseSend)
	return ok
}

// afterCloseSend returns how long after the last request the call is cancelled, if it is.
func (c *caller) afterCloseSend() (time.Duration, bool) {
	switch when := c.Cancel.GetCancelTiming().(type) {
	case nil:
		return 0, c.Cancel != nil
	case *pb.ClientCompatRequest_Cancel_AfterCloseSendMs:
		return time.Duration(when.AfterCloseSendMs) * time.Millisecond, true
	}
	return 0, false
}

// closed cancels a call whose requests have all been sent, if that is when it is cancelled.
func (c *caller) closed() {
	if ms, ok := c.afterCloseSend(); ok {
		time.Sleep(ms)
		c.cancel()
	}
}

// received notes a response, and cancels a call that has enough of them.
func (c *caller) received(p *pb.ConformancePayload) {
	c.result.Payloads = append(c.result.Payloads, p)
	if n := c.Cancel.GetAfterNumResponses(); n > 0 && int(n) == len(c.result.Payloads) {
		c.cancel()
	}
}

// failed notes how a call has ended.
func (c *caller) failed(err error) {
	if err == io.EOF {
		return
	}
	c.result.Error = &pb.Error{Code: pb.Code_CODE_UNKNOWN, Message: proto.String(err.Error())}
	if e, ok := errors.AsType[*connect.Error](err); ok {
		c.result.Error = &pb.Error{Code: pb.Code(e.Code()), Message: proto.String(e.Message())}
		for _, d := range e.Details() {
			c.result.Error.Details = append(c.result.Error.Details, connectproto.ErrorDetailToAny(d))
		}
	}
}

func headersOf(h *connect.Header) (all []*pb.Header) {
	for name, values := range h.All() {
		all = append(all, &pb.Header{Name: name, Value: values})
	}
	return all
}
