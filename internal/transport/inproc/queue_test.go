package inproc

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
)

// A diary is a codec that notes what it is asked to do.
type diary struct {
	link.Codec
	lines []string
}

func newDiary() *diary { return &diary{Codec: codec.Proto()} }

func (d *diary) Append(b []byte, v any) ([]byte, error) {
	d.lines = append(d.lines, "append")
	return d.Codec.Append(b, v)
}

func (d *diary) Copy(dst, src any) (int, bool, error) {
	d.lines = append(d.lines, "copy")
	return d.Codec.Copy(dst, src)
}

func (d *diary) New(src any) any {
	d.lines = append(d.lines, "new")
	return d.Codec.New(src)
}

func (d *diary) Move(dst, src any) bool {
	d.lines = append(d.lines, "move")
	return d.Codec.Move(dst, src)
}

func (d *diary) want(t *testing.T, what string, lines ...string) {
	t.Helper()
	if !slices.Equal(d.lines, lines) {
		t.Errorf("%s takes %v, want %v", what, d.lines, lines)
	}
	d.lines = nil
}

func TestParkedReceiverIsFilledDirectly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := newPipe(0, 0), newDiary()
		got := new(wrapperspb.StringValue)
		done := make(chan error, 1)
		for i := range 3 {
			go func() {
				done <- p.callee.Recv(&link.Frame{Sink: link.Sink{Dst: got, Codec: d, Limit: 100}})
			}()
			synctest.Wait()
			sent := fmt.Sprint("message ", i)
			if err := p.caller.Send(&link.Frame{Msg: link.Live(wrapperspb.String(sent), d), HasMsg: true}); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil || got.Value != sent {
				t.Errorf("received %q, %v", got.Value, err)
			}
			d.want(t, "a message for a parked receiver", "copy")
		}
	})
}

func TestQueuedMessageIsCopiedOnceAndItsShellComesBack(t *testing.T) {
	p, d := newPipe(0, 0), newDiary()
	got := new(wrapperspb.StringValue)
	send := func(s string) {
		if err := p.caller.Send(&link.Frame{Msg: link.Live(wrapperspb.String(s), d), HasMsg: true}); err != nil {
			t.Fatal(err)
		}
	}
	receive := func(want string) {
		f := &link.Frame{Sink: link.Sink{Dst: got, Codec: d, Limit: 100}}
		if err := p.callee.Recv(f); err != nil || !f.Got || got.Value != want {
			t.Fatalf("received %q, %v", got.Value, err)
		}
	}
	send("1")
	d.want(t, "the first message", "new", "copy")
	receive("1")
	d.want(t, "receiving it", "move")
	send("2")
	receive("2")
	d.lines = nil
	// The receiver gives a shell back with its next Recv, and the sender
	// picks it up with its next Send.
	for range 10 {
		send("n")
		receive("n")
	}
	if n := count(d.lines, "new"); n > 1 {
		t.Errorf("%d shells were made for 10 messages that were never together", n)
	}
	if slices.Contains(d.lines, "append") {
		t.Error("a message was marshalled")
	}
}

func count(lines []string, s string) (n int) {
	for _, l := range lines {
		if l == s {
			n++
		}
	}
	return n
}

// TestRingKeepsOrderAsItGrows: the ring grows at any position of its head.
func TestRingKeepsOrderAsItGrows(t *testing.T) {
	for head := range 9 {
		p := newPipe(1<<20, 0)
		sent, received := 0, 0
		send := func(n int) {
			for range n {
				if err := p.caller.Send(&link.Frame{Msg: link.Live(wrapperspb.Int64(int64(sent)), codec.Proto()), HasMsg: true}); err != nil {
					t.Fatal(err)
				}
				sent++
			}
		}
		receive := func(n int) {
			for range n {
				got := new(wrapperspb.Int64Value)
				f := &link.Frame{Sink: link.Sink{Dst: got, Codec: codec.Proto(), Limit: 100}}
				if err := p.callee.Recv(f); err != nil || got.Value != int64(received) {
					t.Fatalf("received %d and %v, want %d", got.Value, err, received)
				}
				received++
			}
		}
		send(head)
		receive(head)
		send(8)
		receive(3)
		send(40)
		receive(45)
		if p.up.n != 0 || p.up.used != 0 {
			t.Errorf("%d frames of %d bytes are left", p.up.n, p.up.used)
		}
	}
}

func TestWindowIs64KiBAtLeast(t *testing.T) {
	p := newPipe(1, 1<<20)
	if p.up.window != 64<<10 || p.down.window != 1<<20 {
		t.Errorf("windows of %d and %d bytes", p.up.window, p.down.window)
	}
}
