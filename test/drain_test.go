package test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// No upload fails because its connection ends, although a client keeps less of it than it sends, so
// that it cannot be made again. Connections end by their age, or because the server stops.
func TestUploadsSurviveTheEndsOfConnections(t *testing.T) {
	uploads := needs.Rounds(15)
	const messages, size = 3, 100_000
	upload := func(client testpb.TestServiceClient) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		st, err := client.StreamingInputCall(ctx, grpc.WaitForReady(true))
		if err != nil {
			return err
		}
		for range messages {
			if err := st.Send(&testpb.StreamingInputCallRequest{Payload: payload(size)}); err != nil && err != io.EOF {
				return err
			}
		}
		reply, err := st.CloseAndRecv()
		if err == nil && reply.AggregatedPayloadSize != messages*size {
			err = errors.New("not all has arrived")
		}
		return err
	}
	old := keepalive.ServerParameters{MaxConnectionAge: 30 * time.Millisecond}
	for _, network := range append(available(t, networks("tcp", "unix")...), "ws") {
		for name, stops := range map[string]bool{"age": false, "GracefulStop": true} {
			t.Run(network+"/"+name, func(t *testing.T) {
				target := "ws://127.0.0.1:0/rpc"
				if network != "ws" {
					target = targetFor(t, network)
				}
				var opts []nearcall.ServerOption
				if !stops {
					opts = append(opts, nearcall.KeepaliveParams(old))
				}
				lis := listen(t, target)
				srv := serve(t, echo{}, opts...)
				start(t, srv, lis)
				client := dial(t, lis.Target(), over(network, impatient())...)
				done := make(chan struct{})
				var all sync.WaitGroup
				for range 6 {
					all.Go(func() {
						for range uploads {
							if err := upload(client); err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
				go func() {
					all.Wait()
					close(done)
				}()
				defer func() { <-done }() // also if the server cannot listen
				for stops && !link.IsClosed(done) {
					time.Sleep(20 * time.Millisecond)
					srv.GracefulStop()
					srv = serve(t, echo{})
					start(t, srv, listen(t, lis.Target()))
				}
			})
		}
	}
}
