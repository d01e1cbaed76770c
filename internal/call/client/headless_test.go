package client

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/callservice"
)

// A headless session's peer sends a message without a header before it, which our servers
// never do.
type headless struct{ callservice.Distant }

func (headless) Done() <-chan struct{} { return nil }

func (headless) NewStream(context.Context, *link.CallHeader) (link.Stream, error) {
	return new(headlessStream), nil
}

type headlessStream struct {
	link.Stream
	looks atomic.Int32
}

func (st *headlessStream) Recv(f *link.Frame) error {
	f.Reset()
	if f.Dst != nil {
		f.Got = true
	} else if st.looks.Add(1) == 100 { // the message stays for a receiver that wants it
		panic("who waits for the header looks again and again")
	}
	return nil
}

func (*headlessStream) Abort(error)         {}
func (*headlessStream) OnAbort(func(error)) {}

// If the peer sends a message first, Header does not wait.
func TestAMessageWithoutAHeader(t *testing.T) {
	for name, receives := range map[string]bool{"before it is received": false, "after": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(options.NewClient(nil), Config{Sessions: callservice.Always{Session: headless{}}})
				cs, err := c.NewStream(t.Context(), streamDesc, streamMethod)
				if err != nil {
					t.Fatal(err)
				}
				if receives {
					if err := cs.RecvMsg(new(msg)); err != nil {
						t.Error(err)
					}
				}
				if md, err := cs.Header(); md != nil || err != nil {
					t.Errorf("Header: %v, %v", md, err)
				}
				if err := cs.RecvMsg(new(msg)); err != nil {
					t.Error(err)
				}
				c.Close(errClosed)
			})
		})
	}
}
