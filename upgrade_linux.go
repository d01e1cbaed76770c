package nearcall

import (
	"net"

	"github.com/nearcall/nearcall/internal/mux"
	"github.com/nearcall/nearcall/internal/transport/shm"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

// upgrade makes shared memory of unix sockets.
var upgrade = &sock.Upgrade{
	Line:    shm.Line,
	Network: schemeShm,
	Offer: func(conn *net.UnixConn) (mux.Conn, []byte, error) {
		c, rest, err := shm.Offer(conn)
		if err != nil {
			return nil, rest, err
		}
		return c, nil, nil
	},
	Receive: shm.Receive,
	Close:   shm.CloseFiles,
	Answer: func(conn *net.UnixConn, first []byte, files []int, decline string) (mux.Conn, []byte, error) {
		c, rest, err := shm.Answer(conn, first, files, decline)
		if err != nil {
			return nil, rest, err
		}
		return c, nil, nil
	},
}
