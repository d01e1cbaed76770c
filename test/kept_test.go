package test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// Handlers may give their context to goroutines that outlive them. What those do reaches no other
// call, whose state may have the same memory.
func TestLateGoroutinesReachNoOtherCall(t *testing.T) {
	for _, network := range networks("unix", "tcp") {
		for placement, opts := range map[string][]nearcall.ServerOption{"auto": nil, "workers": {nearcall.HandlerPlacement(nearcall.Workers)}} {
			t.Run(network+"/"+placement, func(t *testing.T) {
				var left sync.WaitGroup
				defer left.Wait()
				srv := serve(t, echo{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
					own := string(in.Payload.Body)
					_ = grpc.SetTrailer(ctx, metadata.Pairs("of", own))
					left.Go(func() {
						for i := 0; ctx.Err() == nil || i < 10; i++ {
							_ = grpc.SetTrailer(ctx, metadata.Pairs("also", own))
							_ = grpc.SendHeader(ctx, metadata.Pairs("of", own))
						}
					})
					if len(own)%3 == 0 {
						time.Sleep(time.Microsecond)
					}
					return &testpb.SimpleResponse{Payload: in.Payload}, nil
				}}, opts...)
				lis := listen(t, targetFor(t, network))
				start(t, srv, lis)
				client := dial(t, lis.Target(), over(network)...)
				var callers sync.WaitGroup
				for caller := range 4 {
					callers.Go(func() {
						for i := range needs.Rounds(200) {
							want := fmt.Sprintf("%d/%*d", caller, i%7, i)
							var header, trailer metadata.MD
							out, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: &testpb.Payload{Body: []byte(want)}}, grpc.Header(&header), grpc.Trailer(&trailer))
							if err != nil {
								t.Error(err)
								return
							}
							got := append(append(header.Get("of"), trailer.Get("of")...), trailer.Get("also")...)
							for _, of := range append(got, string(out.Payload.Body)) {
								if of != want {
									t.Errorf("call %s has what is of call %s", want, of)
								}
							}
							if len(trailer.Get("of")) != 1 {
								t.Errorf("call %s has the trailer %v", want, trailer)
							}
						}
					})
				}
				callers.Wait()
			})
		}
	}
}
