package inproc

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
)

// locking is a user's codec. It calls hold, which may block, when it encodes or decodes. It
// does not copy, or says that it copies and then cannot.
type locking struct {
	message.Codec
	says bool
	hold func(what string)
}

func (u *locking) Copies(any) bool                  { return u.says }
func (u *locking) Copy(any, any) (int, bool, error) { return 0, false, nil }
func (u *locking) Append(b []byte, v any) ([]byte, error) {
	u.hold("append")
	return u.Codec.Append(b, v)
}
func (u *locking) Decode(data message.Data, v any) (bool, error) {
	u.hold("decode")
	return u.Codec.Decode(data, v)
}

// inBytes returns a call whose caller has encoded its request.
func inBytes(t *testing.T, ctx context.Context, who Callee, c message.Codec, dst any) *Call {
	t.Helper()
	m := message.Live(wrapperspb.String("question"), codec.Proto())
	bytes, err := m.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	call := new(Call)
	call.Profile, call.Codec, call.Request, call.Reply, call.MaxReply = new(link.Profile), c, &bytes, dst, 100
	call.Caller = ctx
	call.Shared = who
	return call
}

// TestLeavingWaitsForNoCodec: a caller leaves at once even if the callee's codec waits for a
// lock that the caller holds. The callee already has the bytes and may decode them later.
func TestLeavingWaitsForNoCodec(t *testing.T) {
	for name, c := range map[string]struct {
		says bool
		do   func(call *Call, u *locking) error
		want error
	}{
		"Take": {false, func(call *Call, u *locking) error {
			got := new(wrapperspb.StringValue)
			err := call.Take(&message.Sink{Dst: got, Codec: u, Limit: 100})
			if err == nil && got.Value != "question" {
				err = errors.New("it is " + got.Value)
			}
			return err
		}, nil},
		"Finish": {false, func(call *Call, u *locking) error {
			m := message.Live(wrapperspb.String("answer"), u)
			return call.Send(nil, &m, &link.End{})
		}, ErrLeft},
		"Finish, after it could not copy": {true, func(call *Call, u *locking) error {
			m := message.Live(wrapperspb.String("answer"), u)
			return call.Send(nil, &m, &link.End{})
		}, ErrLeft},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				lock := make(chan struct{}, 1)
				u := &locking{Codec: codec.Proto(), says: c.says, hold: func(string) { lock <- struct{}{}; <-lock }}
				got := wrapperspb.String("the caller's")
				call := inBytes(t, ctx, &callee{}, u, got)
				lock <- struct{}{} // the caller's, while it calls
				done := make(chan error, 1)
				go func() { done <- c.do(call, u) }()
				synctest.Wait()
				if len(done) > 0 {
					t.Fatalf("the codec was not asked: %v", <-done)
				}
				go cancel()
				if err := call.Wait(&checked{t: t}); err != context.Canceled {
					t.Errorf("Wait returns %v", err)
				}
				<-lock
				if err := <-done; err != c.want {
					t.Errorf("the callee gets %v, want %v", err, c.want)
				}
				if got.Value != "the caller's" {
					t.Errorf("the caller has %q", got.Value)
				}
			})
		})
	}
}

// TestACodecRunsOnItsOwnSide, even if it said that it copies and then could not.
func TestACodecRunsOnItsOwnSide(t *testing.T) {
	for _, says := range []bool{false, true} {
		var caller, callee []string
		note := func(to *[]string) func(string) { return func(what string) { *to = append(*to, what) } }
		u := &locking{Codec: codec.Proto(), says: says}
		got := new(wrapperspb.StringValue)
		call := inBytes(t, t.Context(), nil, u, got)
		u.hold = note(&callee)
		asked := new(wrapperspb.StringValue)
		if err := call.Take(&message.Sink{Dst: asked, Codec: u, Limit: 100}); err != nil || asked.Value != "question" {
			t.Errorf("Take: %q, %v", asked.Value, err)
		}
		m := message.Live(wrapperspb.String("answer"), u)
		if err := errors.Join(call.Send(nil, &m, nil), call.Send(nil, nil, &link.End{})); err != nil {
			t.Errorf("SendReply and Finish: %v", err)
		}
		u.hold = note(&caller)
		if err := call.Wait(&checked{t: t}); err != nil || got.Value != "answer" || !call.Replied {
			t.Errorf("Wait: %q, %t, %v", got.Value, call.Replied, err)
		}
		if len(callee) != 2 || callee[0] != "decode" || callee[1] != "append" || len(caller) != 1 || caller[0] != "decode" {
			t.Errorf("the callee's side does %v, and the caller's %v", callee, caller)
		}
	}
}

// TestPanicOfACodecEndsNoCall: the panic happens outside of any claim, so the callee can
// still end the call.
func TestPanicOfACodecEndsNoCall(t *testing.T) {
	for _, says := range []bool{false, true} {
		u := &locking{Codec: codec.Proto(), says: says, hold: func(string) { panic("broken codec") }}
		call := inBytes(t, t.Context(), nil, u, new(wrapperspb.StringValue))
		for name, f := range map[string]func(){
			"Take": func() { _ = call.Take(&message.Sink{Dst: new(wrapperspb.StringValue), Codec: u, Limit: 100}) },
			"Finish": func() {
				m := message.Live(wrapperspb.String("answer"), u)
				_ = call.Send(nil, &m, &link.End{})
			},
		} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s did not panic", name)
					}
				}()
				f()
			}()
		}
		if err := call.Send(nil, reply("another"), &link.End{}); err != nil {
			t.Errorf("Finish returns %v", err)
		}
		u.hold = func(string) {}
		if err := call.Wait(&checked{t: t}); err != nil || !call.Replied {
			t.Errorf("Wait returns %v", err)
		}
	}
}

// TestLeavingAfterTheReplyFreesIt: a caller that leaves before the end of the call does not have the
// reply that it got in bytes.
func TestLeavingAfterTheReplyFreesIt(t *testing.T) {
	got := wrapperspb.String("the caller's")
	call := inBytes(t, cancelled, &callee{}, &locking{Codec: codec.Proto(), hold: func(string) {}}, got)
	freed := make(pool, 1)
	buf := make([]byte, 4096) // smaller ones are not pooled
	m := message.Encoded(mem.BufferSlice{mem.NewBuffer(&buf, freed)})
	if err := call.Send(nil, &m, nil); err != nil {
		t.Errorf("SendReply returns %v", err)
	}
	m.Free()
	if err := call.Wait(&checked{t: t}); err != context.Canceled || got.Value != "the caller's" || len(freed) != 1 {
		t.Errorf("Wait returns %v, the caller has %q, %d buffers are freed", err, got.Value, len(freed))
	}
	if err := call.Send(nil, nil, &link.End{}); err != ErrLeft {
		t.Errorf("Finish returns %v, want ErrLeft", err)
	}
}

// pool gets the buffers that are freed.
type pool chan []byte

func (pool) Get(n int) *[]byte { b := make([]byte, n); return &b }
func (p pool) Put(b *[]byte)   { p <- *b }
