package quic

import (
	"testing"

	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/chaos"
)

// TestStreamsOfMixedSizes makes streams of messages of 0 bytes to 5 MB, see [chaos.Mixed].
func TestStreamsOfMixedSizes(t *testing.T) {
	for name, window := range map[string]int32{"default windows": 0, "small windows": 1} {
		t.Run(name, func(t *testing.T) {
			server, client := testTLS()
			srv := nearcall.NewServer(nearcall.Creds(nearcall.NewTLS(server)), nearcall.MaxRecvMsgSize(chaos.MaxMixed), nearcall.InitialWindowSize(window))
			testpb.RegisterTestServiceServer(srv, &chaos.MixedService{})
			lis, err := nearcall.Listen("quic:127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- srv.Serve(lis) }()
			t.Cleanup(func() {
				srv.Stop()
				<-served
			})
			conn, err := nearcall.NewClient(lis.Target(), nearcall.WithTransportCredentials(nearcall.NewTLS(client)), nearcall.WithInitialWindowSize(window))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			chaos.Mixed(t, testpb.NewTestServiceClient(conn), chaos.Mixtures(t))
		})
	}
}
