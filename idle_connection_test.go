package nearcall_test

import (
	"runtime"
	"testing"

	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

// TestIdleConnectionsTakeLittleMemory: at most 64 KiB for each side of one,
// stacks included, after it has carried a call. Memory that is shared is not
// among them: untouched, it is none.
func TestIdleConnectionsTakeLittleMemory(t *testing.T) {
	for _, network := range networks("unix") {
		t.Run(network, func(t *testing.T) { testIdleConnections(t, network) })
	}
}

func testIdleConnections(t *testing.T, network string) {
	const connections, most = 200, 2 * 64 << 10
	target := targetFor(t, network)
	lis, err := nearcall.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	srv := serve(t, echo{})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	memory := func() uint64 {
		runtime.GC()
		runtime.GC() // what pools keep goes with the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	connect := func() *nearcall.ClientConn {
		conn, err := nearcall.NewClient(target, over(network)...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := testpb.NewTestServiceClient(conn).UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	conns := []*nearcall.ClientConn{connect()} // and whatever is made once
	before := memory()
	for range connections {
		conns = append(conns, connect())
	}
	if each := int64(memory()-before) / connections; each > most {
		t.Errorf("a connection takes %d bytes, at most %d are due", each, most)
	} else {
		t.Logf("a connection takes %d bytes", each)
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	srv.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
