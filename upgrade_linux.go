package nearcall

import (
	"net"

	"github.com/nearcall/nearcall/internal/mux"
	"github.com/nearcall/nearcall/internal/transport/shm"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

const sharesMemory = true

// toSharedMemory makes shared memory of unix sockets, as much as bytes.
func toSharedMemory(bytes int64) *sock.Upgrade {
	memory := shm.NewMemory(bytes)
	return &sock.Upgrade{
		Line:    shm.Line,
		Network: schemeShm,
		Offer: func(conn *net.UnixConn) (mux.Conn, []byte, error) {
			c, rest, err := shm.Offer(conn, memory)
			if err != nil {
				return nil, rest, err
			}
			return c, nil, nil
		},
		Receive: shm.Receive,
		Close:   shm.CloseFiles,
		Answer: func(conn *net.UnixConn, first []byte, files []int, decline string) (mux.Conn, []byte, error) {
			c, rest, err := shm.Answer(conn, first, files, decline, memory)
			if err != nil {
				return nil, rest, err
			}
			return c, nil, nil
		},
	}
}
