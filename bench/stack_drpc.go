package main

import (
	"context"
	"io"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"storj.io/drpc"
	"storj.io/drpc/drpcconn"
	"storj.io/drpc/drpcmanager"
	"storj.io/drpc/drpcpool"
	"storj.io/drpc/drpcserver"
	"storj.io/drpc/drpcwire"
)

var drpcLimits = drpcmanager.Options{Reader: drpcwire.ReaderOptions{MaximumBufferSize: maxMessage}}

// drpcEncoding encodes messages as the code does that drpc's generator makes.
type drpcEncoding struct{}

func (drpcEncoding) Marshal(m drpc.Message) ([]byte, error) { return proto.Marshal(m.(proto.Message)) }

func (drpcEncoding) MarshalAppend(buf []byte, m drpc.Message) ([]byte, error) {
	return proto.MarshalOptions{}.MarshalAppend(buf, m.(proto.Message))
}

func (drpcEncoding) Unmarshal(buf []byte, m drpc.Message) error {
	return proto.Unmarshal(buf, m.(proto.Message))
}

// drpcMethods is a drpcmux.Mux for gRPC's service descriptions.
type drpcMethods map[string]func(drpc.Stream) error

func (ms drpcMethods) HandleRPC(stream drpc.Stream, rpc string) error {
	handle, ok := ms[rpc]
	if !ok {
		return drpc.ProtocolError.New("unknown rpc: %q", rpc)
	}
	return handle(stream)
}

func serveDRPC(network, address string, s Services) (string, func(), error) {
	methods := make(drpcMethods)
	for _, service := range registryOf(s) {
		name := "/" + service.desc.ServiceName + "/"
		for _, m := range service.desc.Methods {
			methods[name+m.MethodName] = func(stream drpc.Stream) error {
				out, err := m.Handler(service.impl, stream.Context(), func(in any) error { return stream.MsgRecv(in, drpcEncoding{}) }, nil)
				if err != nil {
					return err
				}
				return stream.MsgSend(out, drpcEncoding{})
			}
		}
		for _, m := range service.desc.Streams {
			methods[name+m.StreamName] = func(stream drpc.Stream) error {
				err := m.Handler(service.impl, handlerStream{
					ctx:  stream.Context(),
					send: func(out any) error { return stream.MsgSend(out, drpcEncoding{}) },
					recv: func(in any) error { return stream.MsgRecv(in, drpcEncoding{}) },
				})
				if err != nil {
					return err
				}
				return stream.CloseSend()
			}
		}
	}
	return serveOn(network, address, func(lis net.Listener) (run, stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		srv := drpcserver.NewWithOptions(methods, drpcserver.Options{Manager: drpcLimits})
		return func() { _ = srv.Serve(ctx, lis) }, cancel
	})
}

// dialDRPC returns one connection, or a pool of them for several callers, because a
// connection carries only one call at a time.
func dialDRPC(network, address string, row Row) (Conn, error) {
	dial := func(ctx context.Context, _ string) (*drpcconn.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return drpcconn.NewWithOptions(conn, drpcconn.Options{Manager: drpcLimits}), nil
	}
	ctx := context.Background()
	if row.Callers > 1 {
		pool := drpcpool.New[string, *drpcconn.Conn](drpcpool.Options{})
		return stubs(drpcClient{pool.Get(ctx, address, dial)}, func() { _ = pool.Close() }), nil
	}
	conn, err := dial(ctx, address)
	if err != nil {
		return Conn{}, err
	}
	return stubs(drpcClient{conn}, func() { _ = conn.Close() }), nil
}

// drpcClient makes calls for gRPC's generated code.
type drpcClient struct{ conn drpc.Conn }

func (c drpcClient) Invoke(ctx context.Context, method string, in, out any, _ ...grpc.CallOption) error {
	return c.conn.Invoke(ctx, method, drpcEncoding{}, in, out)
}

func (c drpcClient) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := c.conn.NewStream(ctx, method, drpcEncoding{})
	if err != nil {
		return nil, err
	}
	return drpcStream{stream: stream}, nil
}

type drpcStream struct {
	grpc.ClientStream // nil: only the methods below exist
	stream            drpc.Stream
}

func (s drpcStream) CloseSend() error    { return s.stream.CloseSend() }
func (s drpcStream) SendMsg(m any) error { return s.stream.MsgSend(m, drpcEncoding{}) }

func (s drpcStream) RecvMsg(m any) error {
	err := s.stream.MsgRecv(m, drpcEncoding{})
	if err == io.EOF {
		_ = s.stream.Close()
	}
	return err
}
