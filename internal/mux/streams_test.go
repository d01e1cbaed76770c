package mux

import (
	"errors"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
)

func TestMain(m *testing.M) { leak.Main(m) }

// pair returns both sessions of a connection over a net.Pipe.
func pair(t testing.TB, client, server Options, acceptor link.Acceptor) (*Session, *Session) {
	t.Helper()
	a, b := net.Pipe()
	return startBoth(t, a, b, client, server, acceptor)
}

// startBoth starts the sessions over both ends of a connection.
func startBoth(t testing.TB, a, b Conn, client, server Options, acceptor link.Acceptor) (*Session, *Session) {
	t.Helper()
	client.Client, client.Name, server.Name = true, "client", "server"
	cs, ss := newSession(a, client), newSession(b, server)
	ss.Start(acceptor)
	cs.Start(nil)
	t.Cleanup(func() {
		_ = cs.Close(errors.New("the test is over"))
		<-cs.Gone()
		<-ss.Gone()
	})
	if err := cs.Meet(t.Context()); err != nil {
		t.Fatal(err)
	}
	return cs, ss
}

func TestStreams(t *testing.T) {
	for name, connect := range map[string]func(t *testing.T) (a, b Conn){
		"a connection": func(*testing.T) (Conn, Conn) { a, b := net.Pipe(); return a, b },
		"a bare socket": func(t *testing.T) (Conn, Conn) {
			a, b := newLine(t, 10<<10, &delays{r: rand.New(rand.NewPCG(0, 0))})
			return a, b
		},
	} {
		t.Run(name, func(t *testing.T) {
			transporttest.Suite{
				Connect: func(t *testing.T, deadline time.Time) (caller, callee link.Stream) {
					accepted := make(transporttest.Accepter, 1)
					a, b := connect(t)
					cs, _ := startBoth(t, a, b, Options{}, Options{}, accepted)
					caller, err := cs.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}, Deadline: deadline})
					if err != nil {
						t.Fatal(err)
					}
					return caller, <-accepted
				},
				Window: 64 << 10,
				Codec:  codec.Proto(),
			}.Run(t)
		})
	}
}
