//go:build unix

package sock

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/socketfile"
	"github.com/nearcall/nearcall/internal/testing/needs"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
)

// Connections that wait in the listener's queue when it retires become sessions.
func TestARetiredListenerServesItsQueue(t *testing.T) {
	for network, listen := range map[string]func(path string) (net.Listener, error){
		"tcp":        func(string) (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") },
		"unix":       func(path string) (net.Listener, error) { return net.Listen("unix", path) },
		"socketfile": func(path string) (net.Listener, error) { return socketfile.Listen(path, socketfile.Options{}) },
	} {
		t.Run(network, func(t *testing.T) {
			needs.UnixSockets(t)
			inner, err := listen(filepath.Join(t.TempDir(), "s"))
			if err != nil {
				t.Fatal(err)
			}
			const clients = 5
			opened := make(chan error, clients)
			for range clients {
				raw, err := net.Dial(inner.Addr().Network(), inner.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				go func() {
					s, err := Dialer{Options: with(&clientOptions().Connections), Client: dialsWith(raw), Target: network}.Dial(t.Context())
					if err == nil {
						err = s.Close(net.ErrClosed)
					}
					opened <- err
				}()
			}
			lis := &Listener{Options: with(serverOptions()), Listener: inner}
			lis.Retire() // before the first Accept
			if err := lis.Sessions(func(link.Session) link.Acceptor { return make(transporttest.Accepter, 1) }); err != nil {
				t.Error(err)
			}
			for range clients {
				if err := <-opened; err != nil {
					t.Error(err)
				}
			}
			if conn, err := net.Dial(inner.Addr().Network(), inner.Addr().String()); err == nil {
				_ = conn.Close()
				t.Error("the listener is open")
			}
		})
	}
}

// A late listener returns a connection from Accept after it was closed.
type late struct {
	net.Listener
	accepts chan net.Conn
}

func (l late) Accept() (net.Conn, error) {
	conn, ok := <-l.accepts
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (l late) Close() error {
	near, far := net.Pipe()
	go func() {
		l.accepts <- far
		close(l.accepts)
	}()
	_, err := near.Read(make([]byte, 1))
	return err
}

// A program's listener may accept a connection after it was closed. grpc-go closes it, and so does a Listener.
func TestAProgramsListenerServesNobodyAfterRetire(t *testing.T) {
	lis := &Listener{Options: with(serverOptions()), Listener: late{accepts: make(chan net.Conn)}}
	ended := make(chan error)
	go func() { ended <- lis.Sessions(func(link.Session) link.Acceptor { return nil }) }()
	lis.Retire() // and Close reads the end of the connection
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
