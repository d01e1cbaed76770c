package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/loop"
)

// patience is how long released tasks may take to end.
const patience = 20 * time.Second

// A host is a server with a service on a loop, and perhaps a crowd.
type host struct {
	srv     *nearcall.Server
	loop    *loop.Loop
	release func() error // ends the crowd
}

// newHost makes a loop and its server, and starts the crowd if it belongs in the loop's
// process.
func newHost(kind string, c crowd, tasks int) (*host, error) {
	opts, ok := loopOptions[kind]
	if !ok {
		return nil, fmt.Errorf("there is no loop %q", kind)
	}
	h := &host{nearcall.NewServer(), loop.New(opts...), func() error { return nil }}
	testpb.RegisterTestServiceServer(h.srv.OnLoop(h.loop), echo{})
	if c.atLoop == nil || tasks == 0 {
		return h, nil
	}
	release, err := c.atLoop(h.loop, tasks)
	if err != nil {
		return nil, errors.Join(err, h.end())
	}
	h.release = release
	return h, nil
}

// end ends the server, the crowd and the loop, and waits for them.
func (h *host) end() error {
	h.srv.Stop()
	err := h.release()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return errors.Join(err, h.loop.Close(ctx))
}

// echo is the service.
type echo struct {
	testpb.UnimplementedTestServiceServer
}

func (echo) UnaryCall(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Payload: in.Payload}, nil
}

func (echo) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	for {
		in, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: in.Payload}); err != nil {
			return err
		}
	}
}
