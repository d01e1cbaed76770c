package link_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/goid"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/testing/callservice"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/looptest"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/loop"
)

// A blocked is a session, and its only stream. Its methods block their goroutine until they can
// receive from release, and then do what the fields say.
type blocked struct {
	link.Session
	link.Stream
	release chan struct{}
	replies []string   // for Invoke and Recv
	end     *link.End  // received with the last reply
	err     error      // the result
	aborted chan error // gets the reasons of Abort
	sent    string     // the last message
	ran     []uintptr  // the goroutines that called a method

	halfClosed bool
}

func newBlocked(replies ...string) *blocked {
	return &blocked{release: make(chan struct{}, 1), aborted: make(chan error, 10), replies: replies}
}

func (b *blocked) Peer() *link.Peer { return &link.Peer{Caps: link.Caps{Blocks: true}} }

func (b *blocked) block() error {
	b.ran = append(b.ran, goid.ID())
	<-b.release
	return b.err
}

func (b *blocked) NewStream(context.Context, *link.CallHeader) (link.Stream, error) {
	return b, b.block()
}

func (b *blocked) Invoke(_ context.Context, c *link.UnaryCall) error {
	err := b.block()
	b.sent = string(c.Message().Data().Materialize())
	for _, r := range b.replies {
		to := message.Sink{Dst: c.Reply, Codec: c.Codec, Limit: c.MaxReply}
		_, c.ReplyError = to.Decode(message.Data{Bytes: []byte(r)})
		c.Replied = true
	}
	return err
}

func (b *blocked) Send(f *link.Frame) error {
	if !f.HasMsg {
		b.halfClosed = f.EndSend
		return nil
	}
	b.sent = string(f.Msg.Data().Materialize())
	return b.block()
}

func (b *blocked) Recv(f *link.Frame) error {
	f.Reset()
	if err := b.block(); err != nil || f.Dst == nil {
		f.End = b.end
		return err
	}
	bytes := []byte(b.replies[0])
	b.replies = b.replies[1:]
	if _, err := f.Decode(message.Data{Bytes: bytes}); err != nil {
		return err
	}
	clear(bytes) // they belong to the transport
	f.Got = true
	if len(b.replies) == 0 {
		f.End = b.end
	}
	return nil
}

func (b *blocked) Abort(reason error) { b.aborted <- reason }

// traced is text, and records the goroutines that it runs on.
type traced struct {
	callservice.Text
	ran *[]uintptr
}

func (c traced) Marshal(v any) ([]byte, error) {
	*c.ran = append(*c.ran, goid.ID())
	return c.Text.Marshal(v)
}

func (c traced) Unmarshal(data []byte, v any) error {
	*c.ran = append(*c.ran, goid.ID())
	return c.Text.Unmarshal(data, v)
}

// asTask runs f as a task. While f waits, another task runs, and then b goes on. The codec must have
// run in the task, and b's methods on other goroutines.
func (b *blocked) asTask(t *testing.T, f func(ctx context.Context, c message.Codec)) {
	t.Helper()
	l := loop.New()
	defer func() { _ = l.Close(context.Background()) }()
	var task uintptr
	var coded []uintptr
	b.ran = nil
	done, began := make(chan struct{}), make(chan struct{})
	_ = l.Go(func(ctx context.Context) {
		defer close(done)
		task = goid.ID()
		close(began)
		f(ctx, codec.WrapV1(traced{ran: &coded}))
	})
	<-began
	leak.Within(t, time.Minute, "another task runs", func() {
		ran := make(chan struct{})
		_ = l.Post(func() { close(ran) })
		<-ran
	})
	b.release <- struct{}{}
	<-done
	for _, id := range coded {
		if id != task {
			t.Error("the codec did not run in the task")
		}
	}
	if slices.Contains(b.ran, task) {
		t.Error("the method that blocks ran in the task")
	}
}

func TestATaskIsSuspendedByAStreamThatBlocks(t *testing.T) {
	b := newBlocked("one", "illegible")
	b.end = new(link.End)
	b.asTask(t, func(ctx context.Context, _ message.Codec) {
		opened, err := link.NewStream(ctx, b, new(link.CallHeader))
		if err != nil {
			t.Error(err)
		}
		st := link.StreamFor(wait.WaiterOf(ctx), opened)
		if err := st.Send(&link.Frame{EndSend: true}); err != nil || !b.halfClosed {
			t.Errorf("without a message nothing waits, but Send returns %v", err)
		}
	})
	if link.StreamFor(nil, b) != link.Stream(b) {
		t.Error("goroutines use another stream")
	}
	on := func(f func(link.Stream, message.Codec)) {
		t.Helper()
		b.asTask(t, func(ctx context.Context, c message.Codec) {
			f(link.StreamFor(wait.WaiterOf(ctx), b), c)
		})
	}
	text := "hello"
	on(func(st link.Stream, c message.Codec) {
		if err := st.Send(&link.Frame{Msg: message.Live(&text, c), HasMsg: true}); err != nil || b.sent != text {
			t.Errorf("sent %q, %v", b.sent, err)
		}
		text = "unspeakable"
		if err := st.Send(&link.Frame{Msg: message.Live(&text, c), HasMsg: true}); !isSendError(err) {
			t.Errorf("Send returns %v", err)
		}
	})
	on(func(st link.Stream, c message.Codec) {
		f := link.Frame{Sink: message.Sink{Dst: new(string), Codec: c, Limit: 100}}
		if err := st.Recv(&f); err != nil || !f.Got || *f.Dst.(*string) != "one" || f.Size != 3 || f.End != nil {
			t.Errorf("received %+v, %v", f, err)
		}
	})
	on(func(st link.Stream, c message.Codec) {
		f := link.Frame{Sink: message.Sink{Dst: new(string), Codec: c, Limit: 100}}
		if err := st.Recv(&f); !isRecvError(err) || f.Got || f.End != nil {
			t.Errorf("received %+v, %v; want the codec's error", f, err)
		}
		if err := st.Recv(&f); err != nil || f.Got || f.End != b.end {
			t.Errorf("received %+v, %v; want the end that came with the message", f, err)
		}
	})
	b.err = errBlocked
	on(func(st link.Stream, _ message.Codec) {
		var f link.Frame
		if err := st.Recv(&f); err != errBlocked {
			t.Errorf("received %+v, %v", f, err)
		}
	})
}

var errBlocked = errors.New("no longer")

func isSendError(err error) bool { _, ok := errors.AsType[*message.SendError](err); return ok }
func isRecvError(err error) bool { _, ok := errors.AsType[*message.RecvError](err); return ok }

func TestATaskIsSuspendedByASessionThatBlocks(t *testing.T) {
	for _, c := range []struct {
		name            string
		replies         []string
		err             error // of the session
		replied         bool
		unfit, unfitErr bool // a *RecvError is ReplyError, or is returned
	}{
		{name: "a reply", replies: []string{"one"}, replied: true},
		{name: "no reply"},
		{name: "a reply that cannot be decoded", replies: []string{"illegible"}, unfit: true},
		{name: "two replies", replies: []string{"one", "two"}, err: link.ErrReplies, replied: true},
		{name: "the first of two replies cannot be decoded", replies: []string{"illegible", "two"}, err: link.ErrReplies, replied: true, unfitErr: true},
		{name: "an error", err: errBlocked},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBlocked(c.replies...)
			b.err = c.err
			b.asTask(t, func(ctx context.Context, own message.Codec) {
				request, reply := "hello", ""
				u := &link.UnaryCall{CallHeader: link.CallHeader{MaxReply: 100}, Codec: own, Request: &request, Reply: &reply}
				err := link.Invoke(ctx, b, u)
				if b.sent != request || u.Replied != c.replied || isRecvError(u.ReplyError) != c.unfit {
					t.Errorf("sent %q, received %+v", b.sent, u)
				}
				switch {
				case c.unfitErr:
					if !isRecvError(err) {
						t.Errorf("%v, want the error of the first reply", err)
					}
				case err != c.err:
					t.Errorf("%v, want %v", err, c.err)
				case len(c.replies) == 1 && c.replied && (reply != "one" || u.ReplySize != 3):
					t.Errorf("the reply is %q with %d bytes", reply, u.ReplySize)
				}
			})
		})
	}
	b := newBlocked()
	b.asTask(t, func(ctx context.Context, c message.Codec) {
		request := "unspeakable"
		if err := link.Invoke(ctx, b, &link.UnaryCall{Codec: c, Request: &request}); !isSendError(err) {
			t.Errorf("Invoke returns %v", err)
		}
	})
}

// A stream whose task was abandoned while it waited has no user, so it ends.
func TestATaskThatIsAbandonedLeavesNoStream(t *testing.T) {
	looptest.Abandon(t, func() {
		for name, f := range map[string]func(ctx context.Context, b *blocked){
			"NewStream": func(ctx context.Context, b *blocked) { _, _ = link.NewStream(ctx, b, new(link.CallHeader)) },
			"Recv": func(ctx context.Context, b *blocked) {
				_ = link.StreamFor(wait.WaiterOf(ctx), b).Recv(new(link.Frame))
			},
			"Send": func(ctx context.Context, b *blocked) {
				_ = link.StreamFor(wait.WaiterOf(ctx), b).Send(&link.Frame{Msg: message.EncodedBytes(nil), HasMsg: true})
			},
		} {
			h, b := looptest.NewBoundHost(), newBlocked()
			_ = h.Go(func(ctx context.Context) { f(ctx, b) })
			h.Settle()
			h.Leave()
			b.release <- struct{}{}
			leak.Within(t, time.Minute, name+" aborts the stream", func() {
				if err := <-b.aborted; err != context.Canceled {
					t.Errorf("%s: the stream is aborted for %v", name, err)
				}
			})
		}
	})
}
