package grpcinside

import (
	"io"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/transport/grpcgo"
)

// A countingPool counts the buffers that are in use.
type countingPool struct {
	mem.BufferPool
	used int
}

func (p *countingPool) Get(n int) *[]byte {
	p.used++
	return p.BufferPool.Get(n)
}

func (p *countingPool) Put(b *[]byte) {
	p.used--
	p.BufferPool.Put(b)
}

// TestAQuietSessionConnHasNoBuffer: grpc-go's transport has none of 32 KiB for each of them.
func TestAQuietSessionConnHasNoBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := grpcgo.NewSession(nil, "quiet", "quiet", link.Peer{}, func() {})
		c := newSessionConn(s, func() {})
		pool := &countingPool{BufferPool: mem.NopBufferPool{}}
		read := make(chan error, 1)
		next := func() {
			go func() {
				b, n, err := c.ReadOnReady(32<<10, pool)
				if n > 0 {
					pool.Put(b)
				}
				read <- err
			}()
			synctest.Wait()
			if pool.used != 0 || len(read) != 0 {
				t.Fatalf("%d buffers are in use, %d reads have returned", pool.used, len(read))
			}
		}
		next()
		if _, err := c.Write(frame([]byte(preface), frameSettings, 0, nil)); err != nil {
			t.Fatal(err)
		}
		if err := <-read; err != nil {
			t.Error(err)
		}
		next()
		s.Retire()
		if err := <-read; err != io.EOF || pool.used != 0 {
			t.Errorf("%v, %d buffers are in use", err, pool.used)
		}
	})
}
