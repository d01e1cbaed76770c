package nearcall

import (
	"context"
	"net"
	"time"

	"github.com/nearcall/nearcall/internal/mux"
	"github.com/nearcall/nearcall/internal/transport/shm"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

const sharesMemory = true

// toSharedMemory makes shared memory of unix sockets, as much as bytes. shared says
// that their peers are different ones, of which none is left too much of it.
func toSharedMemory(bytes int64, shared bool) *sock.Upgrade {
	memory := shm.NewMemory(bytes, shared)
	server := shm.NewServer(memory)
	return &sock.Upgrade{
		Line:    shm.Line,
		Network: "shm",
		Offer: func(conn *net.UnixConn) (mux.Conn, []byte, error) {
			c, rest, err := shm.Offer(conn, memory)
			if err != nil {
				return nil, rest, err
			}
			return c, nil, nil
		},
		Answer: func(ctx context.Context, conn *net.UnixConn, first []byte, decline string, deadline time.Time) (mux.Conn, []byte, error) {
			c, rest, err := server.Answer(ctx, conn, first, decline, deadline)
			if err != nil {
				return nil, rest, err
			}
			return c, nil, nil
		},
	}
}
