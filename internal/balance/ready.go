package balance

import "google.golang.org/grpc/mem"

// grpc-go's transport reads through a buffer of 32 KiB. A connection with this method gets the buffer
// only while there is something to read, so that clients of many servers need less memory.

// ReadOnReady reads up to size bytes into a buffer of the pool, once there are any. A server's pipe
// cannot tell, so its buffer is small.
func (c *carrier) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	if err := c.ready(); err != nil {
		return nil, 0, err
	}
	b := pool.Get(min(size, pipeBuffer))
	n, err := c.Read(*b)
	if n == 0 {
		pool.Put(b)
		return nil, 0, err
	}
	return b, n, err
}

// A readier is a connection that can wait for something to read. grpc-go knows the method.
type readier interface {
	ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error)
}

// A readyEnding is an ending connection that is a readier.
type readyEnding struct {
	*ending
	readier
}
