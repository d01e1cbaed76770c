package inproc

import (
	"errors"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
)

// user is a user's codec. It has a Copy method that copies nothing.
type user struct {
	message.Codec
	encode, decode func()
}

func (u *user) Copy(any, any) (int, bool, error) { return 0, false, nil }

func (u *user) Append(b []byte, v any) ([]byte, error) {
	u.encode()
	return u.Codec.Append(b, v)
}

func (u *user) Decode(data message.Data, v any) (bool, error) {
	u.decode()
	return u.Codec.Decode(data, v)
}

// TestAReceiverDecodesWhatCannotBeCopied on its own goroutine, also if it was parked.
// Otherwise a decoder that waits for the sender's Send to return would deadlock.
func TestAReceiverDecodesWhatCannotBeCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipe(0, 0)
		sent := make(chan struct{})
		u := &user{codec.Proto(), func() {}, func() { <-sent }}
		got := new(wrapperspb.StringValue)
		done := make(chan error, 1)
		go func() { done <- p.callee.Recv(&link.Frame{Sink: message.Sink{Dst: got, Codec: u, Limit: 100}}) }()
		synctest.Wait()
		if err := p.caller.Send(&link.Frame{Msg: message.Live(wrapperspb.String("x"), u), HasMsg: true}); err != nil {
			t.Error(err)
		}
		close(sent)
		if err := <-done; err != nil || got.Value != "x" {
			t.Errorf("%q, %v", got.Value, err)
		}
	})
}

// TestACallGoesOnWhileItsLastMessageIsEncoded: the call can still be aborted then, and its
// end can still fail.
func TestACallGoesOnWhileItsLastMessageIsEncoded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipe(0, 0)
		goOn := make(chan struct{})
		u := &user{codec.Proto(), func() { <-goOn }, func() {}}
		ended := make(chan error, 1)
		go func() {
			ended <- p.callee.Send(&link.Frame{Msg: message.Live(wrapperspb.String("x"), u), HasMsg: true, End: &link.End{}})
		}()
		synctest.Wait()
		stopped := errors.New("the server was stopped")
		p.callee.Abort(stopped)
		if err := p.caller.Recv(&link.Frame{Sink: message.Sink{Dst: new(wrapperspb.StringValue), Codec: u, Limit: 100}}); err != stopped {
			t.Errorf("the caller gets %v", err)
		}
		close(goOn)
		if err := <-ended; err != stopped {
			t.Errorf("the callee gets %v", err)
		}
	})
}
