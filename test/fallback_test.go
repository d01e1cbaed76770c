package test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

// A client calls an ordinary gRPC server, and takes nearcall's own way when
// the server has moved over.
func TestAFallbackLastsUntilTheServerHasMovedOver(t *testing.T) {
	hold(t)
	lis := listenTCP(t)
	var address atomic.Pointer[string] // of the server
	at := func(lis net.Listener) {
		a := lis.Addr().String()
		address.Store(&a)
	}
	at(lis)
	var md metadata.MD
	var p peer.Peer
	stop := startGRPC(t, lis, seen(&p, &md))
	client := dial(t, "tcp:"+lis.Addr().String(), nearcall.WithUserAgent("mover"), impatient(),
		nearcall.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", *address.Load())
		}))
	for range 3 {
		if err := callAll(t.Context(), client); err != nil {
			t.Fatal(err)
		}
	}
	if ua := md.Get("user-agent")[0]; ua != "mover grpc-go/"+grpc.Version {
		t.Errorf("the old server sees %q", ua)
	}
	stop()
	again := listenTCP(t)
	start(t, serve(t, seen(&p, &md), nearcall.OtherClients(nearcall.WebClients)), again)
	at(again)
	leak.Eventually(t, "the new server is called", func() bool { // a call may still go to the old one
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return <-invoke(ctx, client, grpc.WaitForReady(true)) == nil
	})
	if ua := md.Get("user-agent")[0]; ua != "mover nearcall/"+nearcall.Version {
		t.Errorf("the new server sees %q", ua)
	}
}

// A call that grpc-go refuses to make fails with its status, like a call of grpc-go.
func TestAFallbackPassesOnWhyACallWasNotMade(t *testing.T) {
	lis := listenTCP(t)
	startGRPC(t, lis, echo{}, grpc.MaxHeaderListSize(1000))
	client := dial(t, "tcp:"+lis.Addr().String())
	wantCode(t, <-invoke(t.Context(), client), codes.OK)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "large", strings.Repeat("x", 5000))
	err := <-invoke(ctx, client)
	wantCode(t, err, codes.Internal)
	if text := status.Convert(err).Message(); !strings.HasPrefix(text, "header list size") {
		t.Errorf("the message is %q", text)
	}
}
