package hostile_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/hostile"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
)

func TestStreams(t *testing.T) {
	for name, o := range map[string]hostile.Options{
		"faithful":     {},
		"delays":       {Seed: 1, Delay: time.Millisecond},
		"crumbs":       {Seed: 2, MaxFragment: 50, Window: 3000},
		"small window": {Seed: 3, Window: 1000, Delay: time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			window := o.Window
			if window == 0 {
				window = 64 << 10
			}
			transporttest.Suite{
				Connect: func(t *testing.T, deadline time.Time) (caller, callee link.Stream) {
					return connect(t, o, deadline)
				},
				Window: window,
				Codec:  codec.Proto(),
			}.Run(t)
		})
	}
}

// connect returns both sides of a stream of a new session.
func connect(t *testing.T, o hostile.Options, deadline time.Time) (caller, callee link.Stream) {
	lis := hostile.Listen("streams", o)
	accepted := make(transporttest.Accepter, 1)
	go func() { _ = lis.Sessions(func(link.Session) link.Acceptor { return accepted }) }()
	s, err := lis.Dialer().Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Close(errors.New("the test is over"))
		_ = lis.Close()
	})
	caller, err = s.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}, Deadline: deadline})
	if err != nil {
		t.Fatal(err)
	}
	return caller, <-accepted
}
