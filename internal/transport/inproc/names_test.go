package inproc

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcall/nearcall/internal/link"
)

// An acceptor accepts everything, and records the calls of its methods.
type acceptor struct {
	session link.Session
	refuse  error
	streams []link.Stream
	closed  []error
	gone    int
	terms   link.Terms
}

func (a *acceptor) NewCall() *Call {
	c := new(Call)
	c.Shared = &callee{call: c}
	return c
}

func (a *acceptor) HandleUnary(c *Call) error {
	if a.refuse != nil {
		return a.refuse
	}
	return c.Send(nil, nil, &link.End{})
}

func (a *acceptor) HandleStream(s link.Stream, _ *link.CallHeader) error {
	if a.refuse != nil {
		return a.refuse
	}
	a.streams = append(a.streams, s)
	return nil
}

func (a *acceptor) Closed(reason error) { a.closed = append(a.closed, reason) }
func (a *acceptor) Gone()               { a.gone++ }
func (a *acceptor) Terms() link.Terms   { return a.terms }

// accept is the function that a server passes to Sessions.
func (a *acceptor) accept(s link.Session) link.Acceptor {
	a.session = s
	return a
}

func listen(t *testing.T, name string) *Listener {
	t.Helper()
	l, err := Listen(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// says fails the test unless err contains all of the words.
func says(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("the error is %v, want %q in it", err, w)
		}
	}
}

func TestNameIsTakenUntilItsListenerCloses(t *testing.T) {
	l := listen(t, "orders")
	_, err := Listen("orders")
	says(t, err, "inproc:orders", "taken")
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	again := listen(t, "orders")
	if again.Target() != "inproc:orders" || again.Addr().String() != "orders" || again.Addr().Network() != "inproc" {
		t.Errorf("target %s, address %v", again.Target(), again.Addr())
	}
	// Closing the first listener again must not free the name.
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	_, err = Listen("orders")
	says(t, err, "taken")
}

func TestListenerHasNoConnectionsToAccept(t *testing.T) {
	conn, err := listen(t, "orders").Accept()
	if conn != nil {
		t.Error("there is a connection")
	}
	says(t, err, "inproc:orders", "Server.Serve")
}

func TestListenerServesOneServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, "orders")
		served := make(chan error, 1)
		go func() { served <- l.Sessions((&acceptor{}).accept) }()
		synctest.Wait()
		says(t, l.Sessions((&acceptor{}).accept), "inproc:orders", link.ErrServed.Error())
		_ = l.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

func TestDialWhereNobodyListens(t *testing.T) {
	_, err := Dialer{Name: "nobody", Options: defaults}.Dial(t.Context())
	says(t, err, "inproc:nobody", "nobody in this process listens", `nearcall.Listen("inproc:nobody")`)

	l := listen(t, "nobody")
	_ = l.Close()
	_, err = Dialer{Name: "nobody", Options: defaults}.Dial(t.Context())
	says(t, err, "nobody in this process listens")
}

func TestDialWaitsForTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, "orders")
		type result struct {
			s   link.Session
			err error
		}
		dialled := make(chan result, 1)
		go func() {
			s, err := Dialer{Name: "orders", Options: defaults}.Dial(t.Context())
			dialled <- result{s, err}
		}()
		synctest.Wait()
		if len(dialled) > 0 {
			t.Fatalf("Dial did not wait: %v", <-dialled)
		}
		a := &acceptor{}
		go func() { _ = l.Sessions(a.accept) }()
		r := <-dialled
		if r.err != nil {
			t.Fatal(r.err)
		}
		if _, err := r.s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}}); err != nil || len(a.streams) != 1 {
			t.Errorf("%v, and the server has %d streams", err, len(a.streams))
		}
		_ = l.Close()
	})
}

func TestDialGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, "orders")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := Dialer{Name: "orders", Options: defaults}.Dial(ctx)
		says(t, err, "no server serves")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error is %v", err)
		}

		failed := make(chan error, 1)
		go func() {
			_, err := Dialer{Name: "orders", Options: defaults}.Dial(t.Context())
			failed <- err
		}()
		synctest.Wait()
		_ = l.Close()
		says(t, <-failed, "closed")
	})
}

func TestDialOfAStoppedServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, "orders")
		go func() { _ = l.Sessions(func(link.Session) link.Acceptor { return nil }) }()
		_, err := Dialer{Name: "orders", Options: defaults}.Dial(t.Context())
		says(t, err, "inproc:orders", "stopped")
		_ = l.Close()
	})
}

func TestAwaitTellsWhenTheNameIsTaken(t *testing.T) {
	taken := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	waiting := func() int {
		names.Lock()
		defer names.Unlock()
		return len(names.awaited["orders"])
	}
	one, stopOne := Dialer{Name: "orders", Options: defaults}.Await()
	two, stopTwo := Dialer{Name: "orders", Options: defaults}.Await()
	given, giveUp := Dialer{Name: "orders", Options: defaults}.Await()
	giveUp()
	if n := waiting(); n != 2 {
		t.Errorf("%d wait, want 2", n)
	}
	listen(t, "others")
	if taken(one) || taken(two) {
		t.Error("another name's listener ends the wait")
	}
	l := listen(t, "orders")
	if !taken(one) || !taken(two) || taken(given) {
		t.Errorf("told: %t, %t, and %t who gave up", taken(one), taken(two), taken(given))
	}
	stopOne()
	stopTwo()
	if n := waiting(); n != 0 {
		t.Errorf("%d are left", n)
	}
	_ = l.Close()
}
