package main

import (
	"context"
	"net"
	"strings"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc"
)

func serveTTRPC(network, address string, s Services) (string, func(), error) {
	srv, err := ttrpc.NewServer()
	if err != nil {
		return "", nil, err
	}
	for _, service := range registryOf(s) {
		desc := ttrpc.ServiceDesc{Methods: make(map[string]ttrpc.Method), Streams: make(map[string]ttrpc.Stream)}
		for _, m := range service.desc.Methods {
			desc.Methods[m.MethodName] = func(ctx context.Context, unmarshal func(any) error) (any, error) {
				return m.Handler(service.impl, ctx, unmarshal, nil)
			}
		}
		for _, m := range service.desc.Streams {
			desc.Streams[m.StreamName] = ttrpc.Stream{
				StreamingClient: m.ClientStreams, StreamingServer: m.ServerStreams,
				Handler: func(ctx context.Context, stream ttrpc.StreamServer) (any, error) {
					return nil, m.Handler(service.impl, handlerStream{ctx: ctx, send: stream.SendMsg, recv: stream.RecvMsg})
				},
			}
		}
		srv.RegisterService(service.desc.ServiceName, &desc)
	}
	return serveOn(network, address, func(lis net.Listener) (run, stop func()) {
		return func() { _ = srv.Serve(context.Background(), lis) }, func() { _ = srv.Close() }
	})
}

func dialTTRPC(network, address string, _ Row) (Conn, error) {
	conn, err := net.Dial(network, address)
	if err != nil {
		return Conn{}, err
	}
	client := ttrpc.NewClient(conn)
	return stubs(ttrpcClient{client}, func() {
		_ = client.Close()
		_ = client.UserOnCloseWait(context.Background())
	}), nil
}

// ttrpcClient makes calls for gRPC's generated code.
type ttrpcClient struct{ client *ttrpc.Client }

// ttrpcMethod splits a method's full name.
func ttrpcMethod(full string) (service, method string) {
	service, method, _ = strings.Cut(full[1:], "/")
	return service, method
}

func (c ttrpcClient) Invoke(ctx context.Context, full string, in, out any, _ ...grpc.CallOption) error {
	service, method := ttrpcMethod(full)
	return c.client.Call(ctx, service, method, in, out)
}

func (c ttrpcClient) NewStream(ctx context.Context, desc *grpc.StreamDesc, full string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	service, method := ttrpcMethod(full)
	s := &ttrpcStream{open: func(in any) (ttrpc.ClientStream, error) {
		return c.client.NewStream(ctx, &ttrpc.StreamDesc{StreamingClient: desc.ClientStreams, StreamingServer: desc.ServerStreams}, service, method, in)
	}}
	if !desc.ClientStreams {
		return s, nil // the request opens it
	}
	var err error
	s.stream, err = s.open(nil)
	return s, err
}

type ttrpcStream struct {
	grpc.ClientStream // nil: only the methods below exist
	open              func(in any) (ttrpc.ClientStream, error)
	stream            ttrpc.ClientStream
	opened            bool // the request was sent; there is only one
}

func (s *ttrpcStream) SendMsg(m any) (err error) {
	if s.stream == nil {
		s.opened = true
		s.stream, err = s.open(m)
		return err
	}
	return s.stream.SendMsg(m)
}

func (s *ttrpcStream) CloseSend() error {
	if s.opened {
		return nil
	}
	return s.stream.CloseSend()
}

func (s *ttrpcStream) RecvMsg(m any) error { return s.stream.RecvMsg(m) }
