package transporttest

import (
	"errors"
	"sync"
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
)

// Uploads are calls that send some messages and wait for their end. Their callee is a [Sink].
type Uploads struct {
	*testing.T
	codec   message.Codec
	size    int
	running sync.WaitGroup
	mu      sync.Mutex
	opened  int
}

// Upload makes uploads with messages of size bytes, n at a time, from each of sides in turn, until
// the session refuses calls. It is an error if an upload that was opened fails.
func Upload(t *testing.T, codec message.Codec, n, size int, sides ...link.Session) *Uploads {
	u := &Uploads{T: t, codec: codec, size: size}
	for i := range n {
		u.running.Go(func() { u.make(sides[i%len(sides)]) })
	}
	return u
}

// Opened returns how many uploads were opened so far.
func (u *Uploads) Opened() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.opened
}

// Wait waits until all uploads have ended, and returns how many were opened.
func (u *Uploads) Wait() int {
	u.running.Wait()
	return u.Opened()
}

// make makes some uploads, one after the other.
func (u *Uploads) make(s link.Session) {
	for range 20 {
		st, err := s.NewStream(u.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}})
		if err != nil {
			var refused link.Unprocessed
			if !errors.As(err, &refused) || !refused.Unsent {
				u.Errorf("%v, which does not say that the call was not sent", err)
			}
			return
		}
		u.mu.Lock()
		u.opened++
		u.mu.Unlock()
		if err := u.upload(st); err != nil {
			u.Errorf("an open call ends with %v", err)
		}
	}
}

func (u *Uploads) upload(st link.Stream) error {
	for range 3 {
		m := message.Live(wrapperspb.Bytes(make([]byte, u.size)), u.codec)
		if err := st.Send(&link.Frame{Msg: m, HasMsg: true}); err != nil {
			return err
		}
	}
	if err := st.Send(&link.Frame{EndSend: true}); err != nil {
		return err
	}
	f := &link.Frame{Sink: message.Sink{Dst: new(wrapperspb.BytesValue), Codec: u.codec, Limit: 10}}
	for f.End == nil {
		if err := st.Recv(f); err != nil {
			return err
		}
	}
	return nil
}

// A Sink is a [link.Acceptor] that receives what each stream sends, and then ends it.
type Sink struct {
	Accepter // nil
	Codec    message.Codec
}

// HandleStream implements [link.Acceptor].
func (k Sink) HandleStream(s link.Stream, _ *link.CallHeader) error {
	go func() {
		f := &link.Frame{Sink: message.Sink{Dst: new(wrapperspb.BytesValue), Codec: k.Codec, Limit: 1 << 20}}
		for !f.EndSend {
			if s.Recv(f) != nil {
				return
			}
		}
		_ = s.Send(&link.Frame{End: &link.End{}})
	}()
	return nil
}
