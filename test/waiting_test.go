package test

import (
	"context"
	"io"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

// TestHandlersAtTheLimitGetWhatTheyWaitFor: one handler waits for the other, which waits for a
// message of its caller. A third call is waiting for a place when the message comes. What reads the
// connection must not wait with that call.
func TestHandlersAtTheLimitGetWhatTheyWaitFor(t *testing.T) {
	check := func(t *testing.T, connect func(srv *nearcall.Server) testpb.TestServiceClient, opts ...nearcall.ServerOption) {
		ran, other := make(chan struct{}, 3), make(chan struct{})
		var calls atomic.Int32
		client := connect(serve(t, echo{
			unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				ran <- struct{}{}
				<-other // ignores its context
				return new(testpb.SimpleResponse), nil
			},
			bidi: func(s bidi) error {
				ran <- struct{}{}
				if calls.Add(1) == 1 {
					defer close(other)
				}
				_, err := s.Recv()
				return err
			},
		}, append(opts, nearcall.MaxConcurrentStreams(2))...))
		first, cancel := context.WithCancel(t.Context())
		left := invoke(first, client)
		<-ran
		second, err := client.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		<-ran
		cancel() // the call is over, and its handler runs on
		wantCode(t, <-left, codes.Canceled)
		third, err := client.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []testpb.TestService_FullDuplexCallClient{third, second} { // the message comes behind the call
			if err := s.Send(new(testpb.StreamingOutputCallRequest)); err != nil {
				t.Error(err)
			}
		}
		for _, s := range []testpb.TestService_FullDuplexCallClient{second, third} {
			if _, err := s.Recv(); err != io.EOF {
				t.Errorf("a handler's end is %v", err)
			}
		}
	}
	for _, network := range available(t, networks("unix", "tcp")...) {
		t.Run(network, func(t *testing.T) {
			check(t, func(srv *nearcall.Server) testpb.TestServiceClient {
				lis := listen(t, targetFor(t, network))
				start(t, srv, lis)
				return dial(t, lis.Target(), over(network)...)
			})
		})
	}
	t.Run("TLS", func(t *testing.T) {
		certs := newCertificates(t)
		check(t, func(srv *nearcall.Server) testpb.TestServiceClient {
			lis := listen(t, "tcp:127.0.0.1:0")
			start(t, srv, lis)
			return dial(t, lis.Target(), nearcall.WithTransportCredentials(credentials.NewTLS(certs.client(nil))))
		}, nearcall.Creds(credentials.NewTLS(certs.server(nil))))
	})
	t.Run("WebSocket", func(t *testing.T) {
		check(t, func(srv *nearcall.Server) testpb.TestServiceClient {
			return dial(t, webSocketTargets(t, srv)["a ws: listener"])
		})
	})
}
