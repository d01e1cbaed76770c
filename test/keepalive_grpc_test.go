package test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
)

// TestOrdinaryServersAreNotPinged unless the client has a keepalive: ordinary gRPC servers end
// connections with more than a ping in five minutes.
func TestOrdinaryServersAreNotPinged(t *testing.T) {
	for _, target := range []string{"passthrough:///server", "tcp:server:1"} {
		t.Run(target, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lis := bufconn.Listen(1 << 16)
				startGRPC(t, lis, echo{})
				conn, err := nearcall.NewClient(target, nearcall.WithTransportCredentials(insecureCreds()),
					nearcall.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				s, err := testpb.NewTestServiceClient(conn).FullDuplexCall(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for range 2 {
					if err := s.Send(&testpb.StreamingOutputCallRequest{}); err != nil {
						t.Fatal(err)
					}
					if _, err := s.Recv(); err != nil {
						t.Fatal(err)
					}
					time.Sleep(10 * time.Minute)
				}
			})
		})
	}
}
