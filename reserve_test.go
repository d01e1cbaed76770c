package nearcall_test

import (
	"runtime"
	"testing"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/reserve"
)

// noReserve waits until the process holds no reserve, and little else.
func noReserve(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); reserve.Active(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes are held although no large message comes", reserve.Held())
		}
		runtime.GC()
	}
	runtime.GC()
	runtime.GC() // the second collection empties pools, which other tests may have filled
}

func TestLargeMessagesMakeTheProcessHoldAReserve(t *testing.T) {
	large := &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, reserve.Large)}}
	for name, c := range map[string]struct {
		server []nearcall.ServerOption
		client []nearcall.DialOption
		asked  *testpb.SimpleRequest
		want   int
	}{
		"large":               {nil, nil, large, reserve.Size},
		"small":               {nil, nil, &testpb.SimpleRequest{}, 0},
		"not for the server":  {[]nearcall.ServerOption{nearcall.NoMemoryReserve()}, nil, large, reserve.Size},
		"not for the client":  {nil, []nearcall.DialOption{nearcall.WithoutMemoryReserve()}, large, reserve.Size},
		"for neither of them": {[]nearcall.ServerOption{nearcall.NoMemoryReserve()}, []nearcall.DialOption{nearcall.WithoutMemoryReserve()}, large, 0},
	} {
		for _, network := range networks("unix", "tcp") {
			t.Run(name+"/"+network, func(t *testing.T) {
				lis := listen(t, targetFor(t, network))
				noReserve(t)
				start(t, serve(t, echo{}, c.server...), lis)
				client := dial(t, lis.Target(), over(network, c.client...)...)
				if _, err := client.UnaryCall(t.Context(), c.asked); err != nil {
					t.Fatal(err)
				}
				if n := reserve.Held(); n != c.want {
					t.Errorf("%d bytes are held, want %d", n, c.want)
				}
				noReserve(t)
			})
		}
	}
}
