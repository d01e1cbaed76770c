//go:build linux

package attack

import (
	"context"
	"errors"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // for http1-gzip and json-any
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/nearcall/nearcall"
)

// serve is the server's process. It serves with default options until it is told to stop.
func (p *Program) serve(a *Attack, args []string) error {
	s := nearcall.NewServer(slices.Concat(p.Server, a.server)...)
	s.RegisterService(withTake(), service{})
	hello := make(addresses)
	for path, target := range p.Listen(args[0]) {
		lis, err := nearcall.Listen(target)
		if err != nil {
			return err
		}
		hello[path] = lis.Target()
		go func() { _ = s.Serve(lis) }()
	}
	if tcp, ok := strings.CutPrefix(hello[overTCP], "tcp:"); ok {
		hello[overWS] = "ws://" + tcp + "/calls"
	}
	return obey(hello, func(command string) any {
		switch command {
		case "settle":
			runtime.GC() // sync.Pools are emptied by the second collection
			debug.FreeOSMemory()
			shared, err := sharedMemory()
			return settled{shared, text(err)}
		case "stop":
			s.Stop()
			return settled{}
		}
		return settled{Error: "no such command: " + command}
	})
}

// settled is the server's answer after it has freed the memory that it can.
type settled struct {
	Shared int64  // bytes of shared memory that the server keeps allocated
	Error  string // empty for none
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// withTake returns the test service with the method Take.
func withTake() *grpc.ServiceDesc {
	desc := testpb.TestService_ServiceDesc
	take := func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		return &testpb.Empty{}, decode(new(anypb.Any))
	}
	desc.Methods = append([]grpc.MethodDesc{{MethodName: "Take", Handler: take}}, desc.Methods...)
	return &desc
}

// service is the test service: a small method of each kind.
type service struct {
	testpb.UnimplementedTestServiceServer
}

// EmptyCall is the honest client's call.
func (service) EmptyCall(context.Context, *testpb.Empty) (*testpb.Empty, error) {
	return &testpb.Empty{}, nil
}

// UnaryCall returns as many bytes as the request asks for, up to 4 MiB.
func (service) UnaryCall(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Payload: &testpb.Payload{Body: make([]byte, min(max(in.ResponseSize, 0), 4<<20))}}, nil
}

// StreamingOutputCall is a subscription: it sends replies of 1,000 bytes until the client
// leaves.
func (service) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	for {
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: make([]byte, 1000)}}); err != nil {
			return err
		}
	}
}

// StreamingInputCall works for two seconds and ignores its context.
func (service) StreamingInputCall(testpb.TestService_StreamingInputCallServer) error {
	time.Sleep(2 * time.Second)
	return nil
}

// FullDuplexCall returns what it receives.
func (service) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	for {
		in, err := s.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: in.Payload}); err != nil {
			return err
		}
	}
}

// HalfDuplexCall waits for the end of its context, and does not receive.
func (service) HalfDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	<-s.Context().Done()
	return s.Context().Err()
}
