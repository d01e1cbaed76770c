package mux

import (
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A tried connection counts its TryReads.
type tried struct {
	Conn
	Prompt
	times atomic.Int64
}

func (c *tried) TryRead(b []byte) (int, error) {
	c.times.Add(1)
	return c.Prompt.TryRead(b)
}

func TestReadersTryUnlessTheyAreToPark(t *testing.T) {
	for name, parks := range map[string]bool{"try": false, "park": true} {
		t.Run(name, func(t *testing.T) {
			a, b := ends(t, "tcp")
			if PromptOf(a) == nil {
				t.Skip("the system has no read of a socket that does not wait")
			}
			client, server := &tried{Conn: a, Prompt: PromptOf(a)}, &tried{Conn: b, Prompt: PromptOf(b)}
			cs, _ := startBoth(t, client, server, Options{NoSpin: parks}, Options{NoSpin: parks}, &waiter{})
			for range 100 {
				echoes(t, cs, noise(100))
			}
			if c, s := client.times.Load(), server.times.Load(); parks && c+s > 0 || !parks && (c == 0 || s == 0) {
				t.Errorf("the client has tried %d times, and the server %d times", c, s)
			}
		})
	}
}

// Silent calls must not keep readers from spinning.
func TestSilentCallsDoNotCount(t *testing.T) {
	s := &Session{streams: make(map[uint64]*stream)}
	add := func(n int) (added []*stream) {
		for range n {
			st := new(stream)
			s.lastOwn += 2
			s.initStream(st, s.lastOwn, "")
			s.streams[st.id] = st
			added = append(added, st)
		}
		return added
	}
	read := func(n int, of ...*stream) {
		for range n {
			s.silent.reads++
			for _, st := range of {
				_, _ = s.lookup(st.id)
			}
			s.active()
		}
	}
	busy := add(3)
	watches := add(1000)
	if n := s.active(); n != 1003 {
		t.Errorf("%d are active that have just begun, want 1003", n)
	}
	read(3000, busy...)
	if n := s.active(); n != 3 {
		t.Errorf("%d are active, want the 3 that something came for", n)
	}
	read(1500, watches[:50]...)
	if n := s.active(); n < 50 || n > 53 {
		t.Errorf("%d are active, want the 50 that something came for", n)
	}
	add(20)
	if n := s.active(); n < 70 || n > 73 {
		t.Errorf("%d are active, with the 20 that have begun", n)
	}
	for _, st := range watches {
		delete(s.streams, st.id)
		s.live.remove(st)
	}
	if n := s.active(); n < 0 || n > 23 {
		t.Errorf("%d are active once the others are over", n)
	}
}

// A narrow connection takes as much of each write as room says, which takes a microsecond.
type narrow struct {
	Prompt
	room  func(try int) int
	err   error
	tries int
}

func (c *narrow) TryWrite(b []byte, all [][]byte) (n int, err error) {
	time.Sleep(time.Microsecond)
	c.tries++
	if all == nil {
		all = [][]byte{b}
	}
	for _, b := range all {
		n += len(b)
	}
	return min(n, c.room(c.tries)), c.err
}

func TestWritersSpinWhileThePeerMakesRoom(t *testing.T) {
	const size = 200 << 10
	for name, c := range map[string]struct {
		room         func(try int) int
		small, parks bool
		all          bool
		tries        int
		earned       int
	}{
		"all at once":          {room: func(int) int { return size }, all: true, tries: 1, earned: maxEarned},
		"some, and often":      {room: func(int) int { return 10 << 10 }, all: true, tries: 20, earned: maxEarned},
		"much, but seldom":     {room: func(try int) int { return try % 40 / 39 * minRoom }, all: true, tries: 40*(size/minRoom) + 39, earned: maxEarned},
		"much, but too seldom": {room: func(try int) int { return try % 60 / 59 * minRoom }, tries: 52, earned: maxEarned - spinCost},
		"too little":           {room: func(int) int { return minRoom / 52 }, tries: 52, earned: maxEarned - spinCost},
		"none":                 {room: func(int) int { return 0 }, tries: 52, earned: maxEarned - spinCost},
		"none for small ones":  {room: func(int) int { return 0 }, small: true, tries: 1, earned: maxEarned},
		"none, and it parks":   {room: func(int) int { return 0 }, parks: true, tries: 1, earned: maxEarned},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := &narrow{room: c.room}
				s := &Session{raw: conn, opts: Options{NoSpin: c.parks}}
				s.writing.roomBudget.earned = maxEarned
				b := &batch{b: newBuffer(100), size: size, large: !c.small}
				b.all = net.Buffers{make([]byte, size/2), make([]byte, size/2)}
				all, err := s.writeNow(b)
				if err != nil || all != c.all || conn.tries != c.tries || s.writing.roomBudget.earned != c.earned {
					t.Errorf("all %v, %v, %d tries, %d earned; want %v, %d, %d", all, err, conn.tries, s.writing.roomBudget.earned, c.all, c.tries, c.earned)
				}
				if n := spinning.Load(); n != 0 {
					t.Errorf("%d still spin", n)
				}
			})
		})
	}
}

// A writer that has spun in vain parks, until waits were short several times.
func TestWritersStopSpinningInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &narrow{room: func(int) int { return 0 }}
		s := &Session{raw: conn}
		s.writing.roomBudget.earned = maxEarned
		tries := func() int {
			before := conn.tries
			_, _ = s.writeNow(&batch{b: newBuffer(1), large: true, all: net.Buffers{make([]byte, minRoom)}})
			return conn.tries - before
		}
		for range maxEarned / spinCost {
			if n := tries(); n < 2 {
				t.Fatal("a writer does not spin")
			}
		}
		if n := tries(); n != 1 {
			t.Errorf("a writer tries %d times after it has always spun in vain", n)
		}
		for range spinCost {
			s.writing.roomBudget.parked(time.Second)
		}
		if n := tries(); n != 1 {
			t.Errorf("a writer tries %d times after long waits", n)
		}
		for range spinCost {
			s.writing.roomBudget.parked(time.Microsecond)
		}
		if n := tries(); n < 2 {
			t.Error("a writer does not spin after short waits")
		}
	})
}

func TestAWriteErrorEndsASpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &narrow{}
		conn.room = func(try int) int {
			if try == 3 {
				conn.err = errDeaf
			}
			return 0
		}
		s := &Session{raw: conn}
		s.writing.roomBudget.earned = maxEarned
		if all, err := s.writeNow(&batch{b: newBuffer(1), large: true, all: net.Buffers{make([]byte, minRoom)}}); all || err != errDeaf {
			t.Errorf("writeNow returns %v, %v", all, err)
		}
		if n := spinning.Load(); n != 0 {
			t.Errorf("%d still spin", n)
		}
	})
}
