package shm

import (
	"errors"
	"io"
	"testing"
)

// A waiter is a Read that waits for bytes or a Write that waits for room.
type waiter struct {
	asleep       word   // the word that it publishes its sleeps in
	theirs, mine *waker // the waker of the peer, and its own
	done         <-chan outcome
}

// inEachWait runs f for a Read and for a Write, of a client and of a server.
func inEachWait(t *testing.T, f func(t *testing.T, w waiter)) {
	t.Run("Read", func(t *testing.T) {
		bothSides(t, func(t *testing.T, c, peer *Conn) {
			f(t, waiter{c.mine.word(atAsleep), peer.data, c.data, reads(c)})
		})
	})
	t.Run("Write", func(t *testing.T) {
		bothSides(t, func(t *testing.T, c, peer *Conn) {
			f(t, waiter{c.mine.word(atWants), peer.space, c.space, writes(c, ringSize+1)})
		})
	})
}

// nextSleep waits for a sleep later than the last, and returns its number.
func nextSleep(t *testing.T, w word, last uint64) (now uint64) {
	t.Helper()
	eventually(t, "it sleeps", func() bool {
		now = w.Load()
		return now&1 == 1 && now > last
	})
	return now
}

// A wake-up for a receiver that has found the bytes by itself ends a later sleep for nothing.
// Read then sleeps again, and does not return.
func TestAWakeUpForNothingEndsNoWait(t *testing.T) {
	bothSides(t, func(t *testing.T, c, peer *Conn) {
		w, last := c.mine.word(atAsleep), uint64(0)
		for range 3 {
			done := reads(c)
			for range maxIdleWakes {
				last = nextSleep(t, w, last)
				peer.data.wake()
			}
			nextSleep(t, w, last)
			_, _ = peer.Write([]byte("x"))
			if got := soon(t, "Read", done); got.n != 1 || got.err != nil {
				t.Fatal(got)
			}
			last = w.Load()
		}
	})
}

// A peer that sends a wake-up for nothing in each sleep costs this side system calls. It soon loses
// the connection.
func TestAPeerThatRingsForNothingAgainAndAgainIsWrong(t *testing.T) {
	inEachWait(t, func(t *testing.T, w waiter) {
		last := uint64(0)
		for range maxIdleWakes + 1 {
			last = nextSleep(t, w.asleep, last)
			w.theirs.wake()
		}
		if got := soon(t, "it", w.done); !errors.Is(got.err, errBroken) {
			t.Errorf("it ends for %v", got.err)
		}
		if slept := (w.asleep.Load() + 1) / 2; slept != maxIdleWakes+1 {
			t.Errorf("it slept %d times", slept)
		}
	})
}

// A flood of wake-ups costs this side only a few system calls, whatever its length.
func TestAFloodOfWakeUpsIsNotReceived(t *testing.T) {
	inEachWait(t, func(t *testing.T, w waiter) {
		nextSleep(t, w.asleep, 0)
		flood := make([]byte, 64<<10)
		if _, err := w.theirs.conn.Write(flood); err != nil {
			t.Fatal(err)
		}
		if got := soon(t, "it", w.done); !errors.Is(got.err, errBroken) {
			t.Errorf("it ends for %v", got.err)
		}
		if slept := (w.asleep.Load() + 1) / 2; slept != 1 {
			t.Errorf("it slept %d times", slept)
		}
		if err := w.theirs.conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		left, err := io.Copy(io.Discard, w.mine.conn)
		if n := len(flood) - int(left); n > maxWakeUps || err != nil {
			t.Errorf("%d of %d wake-ups were received, %v", n, len(flood), err)
		}
	})
}

// Sending a wake-up never blocks, even if the peer does not receive it.
func TestAWakeUpThatIsNotReceivedBlocksNobody(t *testing.T) {
	bothSides(t, func(t *testing.T, c, peer *Conn) {
		for range 10000 {
			peer.data.wake()
		}
		if _, err := peer.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		if got := soon(t, "Read", reads(c)); got.n != 1 || got.err != nil {
			t.Error(got)
		}
	})
}

// Wake-ups that are left over from many earlier sleeps are received together, and are not
// mistaken for a broken peer.
func TestWakeUpsThatAreLeftOverAreReceivedTogether(t *testing.T) {
	bothSides(t, func(t *testing.T, c, peer *Conn) {
		const many = 10 * maxIdleWakes
		for range many {
			if sleeps, err := c.in.startSleeping(); !sleeps || err != nil {
				t.Fatal(sleeps, err)
			}
			if _, err := peer.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			c.in.stopSleeping()
			if n, err := c.TryRead(make([]byte, 2)); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		w := c.mine.word(atAsleep)
		before := w.Load()
		done := reads(c)
		eventually(t, "it has received them", func() bool { return w.Load() > before+2 })
		nextSleep(t, w, before+1)
		_, _ = peer.Write([]byte("x"))
		if got := soon(t, "Read", done); got.n != 1 || got.err != nil {
			t.Error(got)
		}
		if slept := (w.Load() - before) / 2; slept > 3 {
			t.Errorf("it slept %d times", slept)
		}
	})
}
