package inproc

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
)

// A diary is a codec that records its calls.
type diary struct {
	message.Codec
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
				done <- p.callee.Recv(&link.Frame{Sink: message.Sink{Dst: got, Codec: d, Limit: 100}})
			}()
			synctest.Wait()
			sent := fmt.Sprint("message ", i)
			if err := p.caller.Send(&link.Frame{Msg: message.Live(wrapperspb.String(sent), d), HasMsg: true}); err != nil {
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
		if err := p.caller.Send(&link.Frame{Msg: message.Live(wrapperspb.String(s), d), HasMsg: true}); err != nil {
			t.Fatal(err)
		}
	}
	receive := func(want string) {
		f := &link.Frame{Sink: message.Sink{Dst: got, Codec: d, Limit: 100}}
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
	// The receiver returns a used message with its next Recv, and the sender reuses it with
	// its next Send.
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

// A counter sends numbers through a pipe and checks that they arrive in order.
type counter struct {
	*testing.T
	p              *pipe
	sent, received int
}

func (c *counter) send(n int) {
	c.Helper()
	for range n {
		if err := c.p.caller.Send(&link.Frame{Msg: message.Live(wrapperspb.Int64(int64(c.sent)), codec.Proto()), HasMsg: true}); err != nil {
			c.Error(err)
			return
		}
		c.sent++
	}
}

func (c *counter) receive(n int) {
	c.Helper()
	for range n {
		got := new(wrapperspb.Int64Value)
		f := &link.Frame{Sink: message.Sink{Dst: got, Codec: codec.Proto(), Limit: 100}}
		if err := c.p.callee.Recv(f); err != nil || got.Value != int64(c.received) {
			c.Fatalf("received %d and %v, want %d", got.Value, err, c.received)
		}
		c.received++
	}
}

func TestQueueKeepsOrderAsItGrows(t *testing.T) {
	for ahead := range 9 {
		c := &counter{T: t, p: newPipe(1<<20, 0)}
		c.send(ahead)
		c.receive(ahead)
		c.send(8)
		c.receive(3)
		c.send(40)
		c.receive(45)
		if q := &c.p.up; len(q.items) != 0 || q.next != len(q.batch) || q.used != q.freed {
			t.Errorf("%d frames are left, and %d bytes of credit", len(q.items)+len(q.batch)-q.next, q.used-q.freed)
		}
	}
}

func TestQueueKeepsLittleMemoryAfterABurst(t *testing.T) {
	for name, parked := range map[string]bool{"a receiver that takes batches": false, "a receiver that waits for each message": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &counter{T: t, p: newPipe(1<<20, 0)}
				c.send(10_000)
				c.receive(10_000)
				for range 2 {
					if parked {
						go func() {
							synctest.Wait()
							c.send(1)
						}()
					} else {
						c.send(1)
					}
					c.receive(1)
				}
				if q := &c.p.up; cap(q.items)+cap(q.batch) > 2*maxKept {
					t.Errorf("it keeps room for %d frames", cap(q.items)+cap(q.batch))
				}
			})
		})
	}
}

// TestNoCreditIsLostBetweenBatches: a receiver that holds back credit returns all of it
// when the sender blocks, and at the end of a batch.
func TestNoCreditIsLostBetweenBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counter{T: t, p: newPipe(0, 0)}
		const size = 2 + link.MessageOverhead // of a small number other than zero
		c.sent, c.received = 1, 1
		go c.send(100)
		synctest.Wait()
		c.receive(1) // takes the whole batch
		q := &c.p.up
		q.mu.Lock()
		q.window = 100 * size // the 99 remaining messages nearly fill it
		q.mu.Unlock()
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.send(100)
		}()
		synctest.Wait()
		if !q.senderBlocked.Load() {
			t.Fatal("the sender has all the credit it wants")
		}
		c.receive(199)
		<-done
		if q.senderBlocked.Load() || q.used != q.freed {
			t.Errorf("%d of %d bytes of credit are not given back", q.used-q.freed, q.used)
		}
	})
}

func TestWindowIs64KiBAtLeast(t *testing.T) {
	p := newPipe(1, 1<<20)
	if p.up.window != 64<<10 || p.down.window != 1<<20 {
		t.Errorf("windows of %d and %d bytes", p.up.window, p.down.window)
	}
}
