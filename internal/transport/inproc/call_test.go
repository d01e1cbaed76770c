package inproc

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/testing/callservice"
	"github.com/nearcall/nearcall/internal/wait"
)

// checked is a Pool that fails the test if a released Parker holds a token.
type checked struct {
	wait.Pool
	t *testing.T
}

var cancelled = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (c *checked) Release(p wait.Parker) {
	for range 10 { // with a token and a done context, Park may do either
		if p.Park(cancelled) == nil {
			c.t.Error("a Parker is released with a token")
		}
	}
	c.Pool.Release(p)
}

// callee counts the calls of Aborted.
type callee struct {
	call   *Call // of those that Invoke makes
	told   atomic.Int32
	reason atomic.Value
}

func (c *callee) Call() *Call { return c.call }

func (c *callee) Aborted(reason error) {
	c.reason.Store(reason)
	c.told.Add(1)
}

// newCall returns a call with request and reply.
func newCall(ctx context.Context, c Callee, request, reply *wrapperspb.StringValue) *Call {
	call := new(Call)
	call.Profile, call.Codec, call.Request, call.Reply, call.MaxReply = new(link.Profile), codec.Proto(), request, reply, 1<<20
	call.Caller = ctx
	call.Shared = c
	return call
}

func sink(dst any) message.Sink { return message.Sink{Dst: dst, Codec: codec.Proto(), Limit: 1 << 20} }

func reply(s string) *message.Message {
	m := message.Live(wrapperspb.String(s), codec.Proto())
	return &m
}

func TestCallBringsItsResult(t *testing.T) {
	c := &callee{}
	got := new(wrapperspb.StringValue)
	call := newCall(t.Context(), c, wrapperspb.String("question"), got)
	if call.Caller != t.Context() {
		t.Error("the caller's context is another")
	}
	go func() {
		asked := new(wrapperspb.StringValue)
		to := sink(asked)
		if err := call.Take(&to); err != nil || asked.Value != "question" {
			t.Errorf("Take: %q, %v", asked.Value, err)
		}
		for _, err := range []error{
			call.Send(metadata.MD{"h": {"1"}}, nil, nil),
			call.Send(nil, reply("answer"), &link.End{Status: status.New(codes.DataLoss, "but"), Trailer: metadata.MD{"t": {"2"}}}),
		} {
			if err != nil {
				t.Error(err)
			}
		}
	}()
	if err := call.Wait(&checked{t: t}); err != nil {
		t.Fatal(err)
	}
	if got.Value != "answer" || !call.Replied || call.ReplyError != nil {
		t.Errorf("reply %q, %t, %v", got.Value, call.Replied, call.ReplyError)
	}
	if call.Header["h"][0] != "1" || call.Trailer["t"][0] != "2" || call.Status.Code() != codes.DataLoss {
		t.Errorf("header %v, trailer %v, status %v", call.Header, call.Trailer, call.Status)
	}
	if c.told.Load() != 0 {
		t.Error("the callee was told that its caller had gone")
	}
}

// TestCalleeThatComesLateIsRefused: once the caller has left, for any reason, the callee
// cannot touch its memory.
func TestCalleeThatComesLateIsRefused(t *testing.T) {
	errStop := errors.New("stop")
	for name, c := range map[string]struct {
		ctx  context.Context
		end  func(call *Call)
		want error
		told int32
	}{
		"left":    {cancelled, func(*Call) {}, context.Canceled, 1},
		"aborted": {context.Background(), func(call *Call) { call.Abort(errStop); call.Abort(errors.New("later")) }, errStop, 0},
		"ended":   {context.Background(), func(call *Call) { _ = call.Send(nil, nil, &link.End{}) }, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			who := &callee{}
			got := new(wrapperspb.StringValue)
			call := newCall(c.ctx, who, wrapperspb.String("question"), got)
			c.end(call)
			if err := call.Wait(&checked{t: t}); err != c.want {
				t.Fatalf("Wait returns %v, want %v", err, c.want)
			}
			if who.told.Load() != c.told {
				t.Errorf("the callee was told %d times, want %d", who.told.Load(), c.told)
			}
			to := sink(new(wrapperspb.StringValue))
			for what, err := range map[string]error{
				"Take":     call.Take(&to),
				"a header": call.Send(metadata.MD{}, nil, nil),
				"a reply":  call.Send(metadata.MD{}, reply("late"), nil),
				"the end":  call.Send(metadata.MD{}, reply("late"), &link.End{}),
			} {
				if err != ErrLeft {
					t.Errorf("%s returns %v, want ErrLeft", what, err)
				}
			}
			call.Abort(errors.New("late"))
			if got.Value != "" || call.Header != nil || call.Replied {
				t.Errorf("something was written: %q, %v", got.Value, call.Header)
			}
		})
	}
}

func TestErrorsOfMessagesGoToWhoeverIsToBlame(t *testing.T) {
	var send *message.SendError
	var recv *message.RecvError
	t.Run("request that cannot be encoded", func(t *testing.T) {
		call := newCall(t.Context(), &callee{}, wrapperspb.String("\xff"), nil)
		to := sink(new(wrapperspb.StringValue))
		if err := call.Take(&to); !errors.As(err, &send) {
			t.Errorf("Take returns %v, want a SendError", err)
		}
	})
	t.Run("request that is too large", func(t *testing.T) {
		call := newCall(t.Context(), &callee{}, wrapperspb.String("question"), nil)
		to := sink(new(wrapperspb.StringValue))
		to.Limit = 9
		if err := call.Take(&to); !errors.As(err, &recv) || recv.Size != 10 || recv.Limit != 9 {
			t.Errorf("Take returns %v, want a RecvError", err)
		}
	})
	t.Run("reply that cannot be encoded", func(t *testing.T) {
		call := newCall(t.Context(), &callee{}, nil, new(wrapperspb.StringValue))
		if err := call.Send(metadata.MD{}, reply("\xff"), &link.End{}); !errors.As(err, &send) {
			t.Errorf("Finish returns %v, want a SendError", err)
		}
		if call.Replied || call.ReplyError != nil || call.Header != nil {
			t.Error("the caller has seen it")
		}
		if err := call.Send(nil, reply("another"), &link.End{}); err != nil || !call.Replied {
			t.Errorf("after that the call has ended: %v", err)
		}
	})
	t.Run("reply that is too large", func(t *testing.T) {
		call := newCall(t.Context(), &callee{}, nil, new(wrapperspb.StringValue))
		call.MaxReply = 3
		if err := call.Send(nil, reply("answer"), &link.End{}); err != nil {
			t.Errorf("Finish returns %v: that is the caller's affair", err)
		}
		if !call.Replied || !errors.As(call.ReplyError, &recv) {
			t.Errorf("%t, %v, want a RecvError", call.Replied, call.ReplyError)
		}
	})
}

// slow is a codec whose copies block until the test lets them finish.
type slow struct {
	message.Codec
	begun, goOn chan struct{}
}

func (s *slow) Copy(dst, src any) (int, bool, error) {
	close(s.begun)
	<-s.goOn
	return s.Codec.Copy(dst, src)
}

func TestLeavingWaitsForACopyAndForNoHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &slow{codec.Proto(), make(chan struct{}), make(chan struct{})}
		c := &callee{}
		call := newCall(ctx, c, wrapperspb.String("question"), nil)
		call.Codec = s
		took := make(chan error)
		go func() {
			to := message.Sink{Dst: new(wrapperspb.StringValue), Codec: s, Limit: 100}
			took <- call.Take(&to)
			// The handler still runs. The caller must not wait for it.
		}()
		<-s.begun
		left := make(chan error, 1)
		go func() { left <- call.Wait(&checked{t: t}) }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case err := <-left:
			t.Fatalf("Wait returned %v while the request was copied", err)
		default:
		}
		call.Abort(errors.New("too late: the caller leaves")) // changes nothing
		close(s.goOn)
		if err := <-took; err != nil {
			t.Errorf("Take: %v", err)
		}
		if err := <-left; err != context.Canceled {
			t.Errorf("Wait returns %v, want Canceled", err)
		}
		if c.told.Load() != 1 || c.reason.Load() != context.Canceled {
			t.Errorf("the callee was told %d times: %v", c.told.Load(), c.reason.Load())
		}
	})
}

func TestReplyOfAForeignCodecIsDecodedByItsCaller(t *testing.T) {
	text := func(s string) *message.Message {
		m := message.Live(&s, textCodec())
		return &m
	}
	newCall := func(dst *string) *Call {
		call := new(Call)
		call.Profile, call.Reply, call.Codec, call.MaxReply = new(link.Profile), dst, textCodec(), 10
		call.Caller = t.Context()
		call.Shared = &callee{}
		return call
	}
	for name, c := range map[string]struct {
		reply, want string
		err         bool
	}{
		"taken":     {"hello", "hello", false},
		"illegible": {"illegible", "", true},
		"too large": {"hello, hello", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			var got string
			call := newCall(&got)
			if err := call.Send(nil, text(c.reply), &link.End{}); err != nil {
				t.Error(err)
			}
			if got != "" {
				t.Error("the callee decoded it")
			}
			if err := call.Wait(&checked{t: t}); err != nil {
				t.Error(err)
			}
			var recv *message.RecvError
			if got != c.want || !call.Replied || errors.As(call.ReplyError, &recv) != c.err {
				t.Errorf("the caller has %q, %t, %v", got, call.Replied, call.ReplyError)
			}
		})
	}
	t.Run("never encoded", func(t *testing.T) {
		call := newCall(new(string))
		var send *message.SendError
		if err := call.Send(nil, text("unspeakable"), &link.End{}); !errors.As(err, &send) || call.Replied {
			t.Errorf("Finish returns %v, want a SendError", err)
		}
	})
	t.Run("its caller left", func(t *testing.T) {
		var got string
		call := newCall(&got)
		call.Caller = cancelled
		if err := call.Wait(&checked{t: t}); err != context.Canceled {
			t.Errorf("Wait returns %v", err)
		}
		if err := call.Send(nil, text("hello"), &link.End{}); err != ErrLeft || got != "" {
			t.Errorf("Finish returns %v, and the caller has %q", err, got)
		}
	})
}

func TestClaimsMayOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &slow{codec.Proto(), make(chan struct{}), make(chan struct{})}
		call := newCall(ctx, &callee{}, wrapperspb.String("question"), nil)
		call.Codec = s
		go func() {
			to := message.Sink{Dst: new(wrapperspb.StringValue), Codec: s, Limit: 100}
			_ = call.Take(&to)
		}()
		<-s.begun
		if err := call.Send(metadata.MD{"h": {"1"}}, nil, nil); err != nil {
			t.Errorf("SendHeader beside Take returns %v", err)
		}
		left := make(chan error, 1)
		go func() { left <- call.Wait(&checked{t: t}) }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		if len(left) > 0 {
			t.Error("the end of one claim let the caller go, though another was held")
		}
		close(s.goOn)
		if err := <-left; err != context.Canceled {
			t.Errorf("Wait returns %v", err)
		}
	})
}

// broken is a codec that panics.
type broken struct{ message.Codec }

func (broken) Copy(any, any) (int, bool, error)       { panic("broken codec") }
func (broken) Append([]byte, any) ([]byte, error)     { panic("broken codec") }
func (broken) Decode(message.Data, any) (bool, error) { panic("broken codec") }

func TestPanicOfACodecHoldsNoCaller(t *testing.T) {
	panics := func(f func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Error("it did not panic")
			}
		}()
		f()
	}
	c := broken{codec.Proto()}
	call := newCall(cancelled, &callee{}, nil, nil)
	call.Request, call.Codec = wrapperspb.String("question"), c
	to := message.Sink{Dst: new(wrapperspb.StringValue), Codec: c, Limit: 100}
	panics(func() { _ = call.Take(&to) })
	m := message.Live(wrapperspb.String("answer"), c)
	panics(func() { _ = call.Send(nil, &m, &link.End{}) })
	if err := call.Wait(&checked{t: t}); err != context.Canceled {
		t.Errorf("Wait returns %v", err)
	}
}

func TestDeadlineEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		call := newCall(ctx, &callee{}, nil, nil)
		if err := call.Wait(&checked{t: t}); err != context.DeadlineExceeded {
			t.Errorf("Wait returns %v", err)
		}
	})
}

func textCodec() message.Codec { return codec.WrapV1(callservice.Text{}) }
