package targets

import (
	"context"
	"net"
	"time"

	"github.com/nearcall/nearcall/internal/mux"
	"github.com/nearcall/nearcall/internal/nearpath"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/transport/shm"
)

const sharesMemory = true

// SharedMemory returns an upgrade of unix sockets to as much shared memory as o allows. shared says
// that connections of different peers share this limit. With shared, no peer can take more than its
// part.
func SharedMemory(o *options.Connections, shared bool) *nearpath.Upgrade {
	memory := shm.NewMemory(o.MaxMemory, shared)
	server := shm.NewServer(memory)
	return &nearpath.Upgrade{
		Line:    shm.Line,
		Network: "shm",
		Trusts:  shm.SameUser,
		Offer: func(conn *net.UnixConn) (mux.Conn, []byte, error) {
			c, rest, err := shm.Offer(conn, memory)
			if err != nil {
				return nil, rest, err
			}
			return c, nil, nil
		},
		Answer: func(ctx context.Context, conn net.Conn, first []byte, decline string, required bool, deadline time.Time) (mux.Conn, []byte, error) {
			c, rest, err := server.Answer(ctx, conn, first, decline, required, deadline)
			if err != nil {
				return nil, rest, err
			}
			return c, nil, nil
		},
	}
}
