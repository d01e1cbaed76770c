package sniff

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/wire"
)

// A countingPool counts the buffers that are in use.
type countingPool struct {
	mem.BufferPool
	used atomic.Int32
}

func (p *countingPool) Get(n int) *[]byte {
	p.used.Add(1)
	return p.BufferPool.Get(n)
}

func (p *countingPool) Put(b *[]byte) {
	p.used.Add(-1)
	p.BufferPool.Put(b)
}

// TestAQuietSocketOfAnOrdinaryServerHasNoBuffer: grpc-go's transport has none of 32 KiB for each of them.
func TestAQuietSocketOfAnOrdinaryServerHasNoBuffer(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	conn, err := net.Dial("tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	server, err := lis.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	const reply = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	go func() {
		_, _ = io.ReadFull(server, make([]byte, len(wire.Question)))
		_, _ = io.WriteString(server, reply)
	}()
	over, native, err := Ask(t.Context(), conn, nil)
	if err != nil || native {
		t.Fatal(native, err)
	}
	ready, ok := over.(interface {
		ReadOnReady(int, mem.BufferPool) (*[]byte, int, error)
	})
	if !ok {
		t.Fatalf("%T has no method ReadOnReady", over)
	}
	pool := &countingPool{BufferPool: mem.NopBufferPool{}}
	type result struct {
		text string
		err  error
	}
	read := func() result {
		b, n, err := ready.ReadOnReady(32<<10, pool)
		if n == 0 {
			return result{"", err}
		}
		defer pool.Put(b)
		return result{string((*b)[:n]), err}
	}
	if r := read(); r != (result{reply, nil}) {
		t.Errorf("first %q, %v", r.text, r.err)
	}
	later := make(chan result, 1)
	for _, want := range []result{{"more", nil}, {"", io.EOF}} {
		go func() { later <- read() }()
		leak.AwaitBlocked(t, "IO wait", "sniff.readySocket.ReadOnReady(")
		if n := pool.used.Load(); n != 0 {
			t.Errorf("%d buffers are in use", n)
		}
		if want.err == nil {
			_, _ = io.WriteString(server, want.text)
		} else {
			_ = server.Close()
		}
		if r := <-later; r != want {
			t.Errorf("%q, %v, want %q, %v", r.text, r.err, want.text, want.err)
		}
	}
	if err := conn.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if r := read(); r.err == nil || pool.used.Load() != 0 {
		t.Errorf("after the deadline: %v, %d buffers are in use", r.err, pool.used.Load())
	}
}
