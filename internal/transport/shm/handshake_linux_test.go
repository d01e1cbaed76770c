package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearcall/nearcall/internal/scmrights"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// soonEnough returns a deadline that no test reaches.
func soonEnough() time.Time { return time.Now().Add(time.Minute) }

// answer answers an offer as a new server.
func answer(conn *net.UnixConn) (*Conn, []byte, error) {
	return NewServer(plenty).Answer(context.Background(), conn, nil, "", false, soonEnough())
}

// theOffer returns the offer of a client of this version.
func theOffer() []byte { return appendOffer(nil, offer{version, features}) }

// A kit is what a server sends, and can spoil first. close closes all of it.
type kit struct {
	t     testing.TB
	terms terms
	files []int // the memory and the room socket
	undo  []func()
}

func newKit(t testing.TB) *kit {
	t.Helper()
	k := &kit{t: t, terms: offer{version, features}.agreed()}
	f, err := newFile(k.terms.layout)
	k.must(err)
	near, far, err := pair()
	k.must(err)
	k.files = []int{int(f.Fd()), far}
	k.undo = append(k.undo, f.release, func() { _ = near.Close() }, func() { _ = unix.Close(far) })
	return k
}

func (k *kit) must(err error) {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
}

func (k *kit) close() {
	for _, f := range k.undo {
		f()
	}
}

// owns makes close close fd.
func (k *kit) owns(fd int) int {
	k.undo = append(k.undo, func() { _ = unix.Close(fd) })
	return fd
}

// memory returns a memfd with the given size and seals, whose segments start with marks.
func (k *kit) memory(size int64, seals int, marks ...string) int {
	k.t.Helper()
	fd, err := unix.MemfdCreate("nearcall", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	k.must(err)
	k.owns(fd)
	for i, mark := range marks {
		_, err = unix.Pwrite(fd, []byte(mark), k.terms.layout.segmentAt(i == 0))
		k.must(err)
	}
	k.must(unix.Ftruncate(fd, size))
	if seals != 0 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		k.must(err)
	}
	return fd
}

func (k *kit) unsealed(seal int) int {
	return k.memory(k.terms.layout.size(), seals&^seal, magic, magic)
}

func (k *kit) sized(size int64) int { return k.memory(size, seals, magic, magic) }

func (k *kit) regularFile() int {
	f, err := os.CreateTemp(k.t.TempDir(), "")
	k.must(err)
	defer f.Close()
	k.must(f.Truncate(k.terms.layout.size()))
	fd, err := unix.Dup(int(f.Fd()))
	k.must(err)
	return k.owns(fd)
}

func (k *kit) pipe() int {
	var fds [2]int
	k.must(unix.Pipe2(fds[:], unix.O_CLOEXEC))
	k.owns(fds[1])
	return k.owns(fds[0])
}

func (k *kit) socket(domain, kind int) int {
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
	k.must(err)
	return k.owns(fd)
}

// wrongMemory are descriptors that a client must not accept as memory.
var wrongMemory = map[string]func(k *kit) int{
	"a regular file":             (*kit).regularFile,
	"a pipe":                     (*kit).pipe,
	"a socket":                   func(k *kit) int { return k.socket(unix.AF_UNIX, unix.SOCK_STREAM) },
	"the room socket":            func(k *kit) int { return k.files[1] },
	"memory without a seal":      func(k *kit) int { return k.memory(k.terms.layout.size(), 0, magic, magic) },
	"memory that may shrink":     func(k *kit) int { return k.unsealed(unix.F_SEAL_SHRINK) },
	"memory that may grow":       func(k *kit) int { return k.unsealed(unix.F_SEAL_GROW) },
	"memory to be sealed":        func(k *kit) int { return k.unsealed(unix.F_SEAL_SEAL) },
	"no memory":                  func(k *kit) int { return k.memory(0, seals) },
	"memory that is too short":   func(k *kit) int { return k.sized(k.terms.layout.size() - 1) },
	"memory that is too long":    func(k *kit) int { return k.sized(k.terms.layout.size() + 1) },
	"memory that does not begin": func(k *kit) int { return k.memory(k.terms.layout.size(), seals, "nearshm2", magic) },
	"memory that does not go on": func(k *kit) int { return k.memory(k.terms.layout.size(), seals, magic) },
}

// wrongRoomSockets are descriptors that a client must not accept as the room socket.
var wrongRoomSockets = map[string]func(k *kit) int{
	"a regular file":     (*kit).regularFile,
	"a pipe":             (*kit).pipe,
	"memory":             func(k *kit) int { return k.files[0] },
	"a socket of TCP":    func(k *kit) int { return k.socket(unix.AF_INET, unix.SOCK_STREAM) },
	"a datagram socket":  func(k *kit) int { return k.socket(unix.AF_UNIX, unix.SOCK_DGRAM) },
	"a seqpacket socket": func(k *kit) int { return k.socket(unix.AF_UNIX, unix.SOCK_SEQPACKET) },
}

// goOn checks that a connection of sockets still works as one.
func goOn(t testing.TB, a, b *net.UnixConn) {
	t.Helper()
	for _, way := range [][2]*net.UnixConn{{a, b}, {b, a}} {
		if _, err := way[0].Write([]byte("as a socket")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 100)
		if n, err := way[1].Read(got); string(got[:n]) != "as a socket" || err != nil {
			t.Fatalf("%q, %v", got[:n], err)
		}
	}
}

// refused checks that nothing has replaced a socket.
func refused(t testing.TB, c *Conn, err error) {
	t.Helper()
	if c != nil && err == nil {
		_ = c.Close()
	}
	if err == nil {
		t.Fatal("it is taken")
	}
}

// declined reads a server's answer that declines, and returns the reason.
func declined(t testing.TB, a *net.UnixConn) string {
	t.Helper()
	_ = a.SetReadDeadline(time.Now().Add(10 * time.Second))
	b := make([]byte, len(Line)+2)
	if _, err := io.ReadFull(a, b); err != nil {
		t.Fatal(err)
	}
	if string(b[:len(Line)]) != Line || b[len(Line)] != declines {
		t.Fatalf("the server answers %q", b)
	}
	why := make([]byte, b[len(Line)+1])
	if _, err := io.ReadFull(a, why); err != nil || len(why) == 0 {
		t.Fatalf("it declines for %q, %v", why, err)
	}
	return string(why)
}

func TestAServerDeclinesForAReason(t *testing.T) {
	for _, wrapped := range []bool{false, true} { // a decline needs no descriptor, and so no socket
		leavesNothing(t, func() {
			a, b := sockets(t)
			defer a.Close()
			defer b.Close()
			var conn net.Conn = b
			if wrapped {
				conn = struct{ net.Conn }{b}
			}
			first := append(theOffer(), "more"...)
			reason := strings.Repeat("so it is; ", 100)
			c, rest, err := NewServer(plenty).Answer(t.Context(), conn, first, reason, false, soonEnough())
			refused(t, c, err)
			if string(rest) != "more" {
				t.Errorf("%q is left", rest)
			}
			if why := declined(t, a); why != reason[:maxBody] {
				t.Errorf("it declines for %q", why)
			}
			goOn(t, a, b)
		})
	}
}

// TestAServerTakesNoDescriptor: no descriptor that a client passes arrives, so that there
// is none to close.
func TestAServerTakesNoDescriptor(t *testing.T) {
	needs.RefusedDescriptors(t)
	leavesNothing(t, func() {
		a, b := sockets(t)
		defer a.Close()
		defer b.Close()
		k := newKit(t)
		defer k.close()
		client, server := agree(t, a, b)
		defer client.Close()
		defer server.Close()
		for name, conn := range map[string]*net.UnixConn{"data": client.data.conn, "space": client.space.conn} {
			if err := send(conn, []byte{1}, k.pipe()); !errors.Is(err, unix.EPERM) {
				t.Errorf("the socket for %s takes a descriptor: %v", name, err)
			}
		}
	})
}

// TestADeadClientIsNotKeptByItsServer: a client must not be able to pass its own ends of
// the sockets to the server and exit, as its end would stay open until the server reads
// them.
func TestADeadClientIsNotKeptByItsServer(t *testing.T) {
	needs.RefusedDescriptors(t)
	leavesNothing(t, func() {
		client, server := connected(t)
		var own []int
		for _, b := range []*waker{client.data, client.space} {
			if err := b.raw.Control(func(fd uintptr) { own = append(own, int(fd)) }); err != nil {
				t.Fatal(err)
			}
		}
		for _, b := range []*waker{client.space, client.data} {
			_ = send(b.conn, []byte{1}, own...) // must fail
		}
		_ = client.Close()
		if got := soon(t, "Read", reads(server)); got.err != io.EOF {
			t.Error(got)
		}
		_ = server.Close()
	})
}

// A server makes no memory for a client that hung up while it waited for a slot.
func TestAClientThatHasLeftIsNotAnswered(t *testing.T) {
	a, b := sockets(t)
	if err := send(a, append(theOffer(), takes)); err != nil {
		t.Fatal(err)
	}
	_ = a.Close()
	full := NewServer(NewMemory(0, true)) // which would decline
	if c, _, err := full.Answer(t.Context(), b, nil, "", false, soonEnough()); c != nil || !errors.Is(err, io.EOF) {
		t.Errorf("%v, %v", c, err)
	}
}

// TestAServersClientGoesWrong makes clients break the rules after an accepted offer, or
// before the offer is complete.
func TestAServersClientGoesWrong(t *testing.T) {
	body := func(b ...byte) []byte { return appendBody([]byte(Line), b) }
	cases := map[string]struct {
		offer  []byte // empty for the usual one
		says   string // what it sends next
		why    string // the server declines; the connection stays a socket
		socket bool   // the connection stays a socket
		broken bool
		taken  bool
	}{
		"it says nothing":                    {offer: []byte{}},
		"half a line":                        {offer: []byte(Line[:7])},
		"a line alone":                       {offer: []byte(Line)},
		"half an offer":                      {offer: theOffer()[:len(Line)+2]},
		"an empty offer":                     {offer: body(), why: "its offer is too short", broken: true},
		"a version alone":                    {offer: body(1), why: "its offer is too short", broken: true},
		"half a number":                      {offer: body(1, 0x80), why: "its offer is too short", broken: true},
		"a number without end":               {offer: body(append(slices.Repeat([]byte{0xff}, 20), 0)...), why: "more than 64 bits", broken: true},
		"version 0":                          {offer: body(0, 0), why: "no version 0", broken: true},
		"a later version":                    {offer: body(200, 3, 0xff, 0xff, 0x03, 0, 1, 2, 3), says: "+", taken: true},
		"no verdict":                         {},
		"it declines":                        {says: "-", socket: true},
		"a verdict that makes no sense":      {says: "x", broken: true},
		"a verdict and a wake-up, as it may": {says: "+\x01", taken: true},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t, func() {
				a, b := sockets(t)
				defer a.Close()
				defer b.Close()
				scmrights.Accept(a)
				says := test.offer
				if says == nil {
					says = theOffer()
				}
				if err := send(a, append(says, test.says...)); err != nil {
					t.Fatal(err)
				}
				if test.why == "" && !test.socket {
					_ = a.CloseWrite()
				}
				c, rest, err := answer(b)
				if test.taken {
					if err != nil {
						t.Fatal(err)
					}
					if _, err := c.Read(make([]byte, 1)); err != io.EOF {
						t.Error(err)
					}
					_ = c.Close()
					return
				}
				refused(t, c, err)
				if broken := errors.Is(err, errBroken); broken != test.broken {
					t.Error(err)
				}
				if len(rest) > 0 {
					t.Errorf("%q is left", rest)
				}
				switch {
				case test.why != "":
					if why := declined(t, a); !strings.Contains(why, test.why) {
						t.Errorf("it declines for %q", why)
					}
					goOn(t, a, b)
				case test.offer == nil:
					got := make([]byte, maxBody)
					n, files, err := receive(a, got)
					closeFiles(files)
					want := appendTerms(nil, offer{version, features}.agreed())
					if string(got[:n]) != string(want) || len(files) != answerFiles || err != nil {
						t.Errorf("the answer: %q with %d descriptors, %v", got[:n], len(files), err)
					}
				}
				if test.socket {
					goOn(t, a, b)
				}
			})
		})
	}
}

// A client that has sent part of an offer, or got an answer, and sends nothing more is
// dropped long before its connection's deadline.
func TestAServerDoesNotWaitLongForAClient(t *testing.T) {
	for name, says := range map[string][]byte{"half an offer": theOffer()[:len(Line)], "no verdict": theOffer()} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t, func() {
				a, b := sockets(t)
				defer a.Close()
				defer b.Close()
				scmrights.Accept(a)
				if err := send(a, says); err != nil {
					t.Fatal(err)
				}
				s := NewServer(plenty)
				s.timeout = 10 * time.Millisecond
				c, _, err := s.Answer(t.Context(), b, nil, "", false, time.Now().Add(time.Hour))
				refused(t, c, err)
				if !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error(err)
				}
				if _, err := b.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("the socket waits on: %v", err)
				}
			})
		})
	}
}

// After an offer a connection has the same deadline as before.
func TestAnOfferLeavesTheDeadlineAlone(t *testing.T) {
	for verdict, reason := range map[string]string{"+": "", "-": "", "": "because"} {
		a, b := sockets(t)
		scmrights.Accept(a)
		if err := send(a, append(theOffer(), verdict...)); err != nil {
			t.Fatal(err)
		}
		s := NewServer(plenty)
		s.timeout = time.Hour
		deadline := time.Now().Add(100 * time.Millisecond)
		c, _, err := s.Answer(t.Context(), b, nil, reason, false, deadline)
		if (err == nil) != (verdict == "+") {
			t.Fatal(err)
		}
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().Before(deadline) {
			t.Errorf("with the verdict %q: %v", verdict, err)
		}
		if c != nil {
			_ = c.Close()
		}
		_, _ = a.Close(), b.Close()
	}
}

// TestFewAnswersAreUnderWayAtATime: clients that do not complete their handshakes take no
// more of the server than its slots allow.
func TestFewAnswersAreUnderWayAtATime(t *testing.T) {
	const most, more = 8, 20
	leavesNothing(t, func() {
		s := NewServer(plenty)
		s.slots = newSlots(most)
		s.slots.grace = time.Hour
		before := held(t)
		var all stalled
		defer all.end(t)
		all.stall(t, s, most+more)
		// Both ends of each socket; and for those with a slot the memory and the room
		// socket
		want := holding{before.descriptors + 2*(most+more) + 2*most, before.mappings + 3*most}
		eventually(t, "each that has its turn has its memory", func() bool { return held(t) == want })
	})
}

// TestClientsThatStallHoldUpNobody: however many clients stall, the next client soon gets a
// slot.
func TestClientsThatStallHoldUpNobody(t *testing.T) {
	const most = 4
	leavesNothing(t, func() {
		s := NewServer(plenty)
		s.slots = newSlots(most)
		s.slots.grace = 50 * time.Millisecond // a correct client can be slow
		s.timeout = time.Hour
		var all stalled
		defer all.end(t)
		all.stall(t, s, 10*most)
		a, b := sockets(t)
		answered := make(chan *Conn, 1)
		go func() {
			c, _, err := s.Answer(t.Context(), b, nil, "", false, soonEnough())
			if err != nil {
				t.Error(err)
			}
			answered <- c
		}()
		client, _, err := Offer(a, plenty)
		if err != nil {
			t.Fatal(err)
		}
		_ = client.Close()
		_ = soon(t, "an answer", answered).Close()
		if err := soon(t, "a turn", all.ended); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a client that stalls: %v", err)
		}
		all.ended <- nil
	})
}

// stalled are clients that have made offers and never confirm the answers.
type stalled struct {
	clients []*net.UnixConn
	ended   chan error // the error of each answer
}

func (s *stalled) stall(t *testing.T, server *Server, n int) {
	t.Helper()
	s.ended = make(chan error, n)
	for range n {
		a, b := sockets(t)
		scmrights.Accept(a)
		if err := send(a, theOffer()); err != nil {
			t.Fatal(err)
		}
		s.clients = append(s.clients, a)
		go func() {
			c, _, err := server.Answer(t.Context(), b, nil, "", false, soonEnough())
			if c != nil {
				_ = c.Close()
			}
			_ = b.Close()
			s.ended <- err
		}()
	}
	eventually(t, "all turns are taken", func() bool { return len(server.slots.free) == cap(server.slots.free) })
}

// end waits until all answers to these clients have ended.
func (s *stalled) end(t *testing.T) {
	for _, a := range s.clients {
		_ = a.Close()
	}
	leak.Finally(t, "each answer has ended", func() bool { return len(s.ended) == cap(s.ended) })
}

// A client waits for a slot until the timeout, or until ctx ends.
func TestAClientThatWaitsForItsTurnIsDeclinedInTheEnd(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for why, ctx := range map[string]context.Context{"too many other clients": t.Context(), "context canceled": ended} {
		a, b := sockets(t)
		s := NewServer(plenty)
		s.slots = newSlots(0) // none ever gets free
		s.timeout = 10 * time.Millisecond
		if ctx == ended {
			s.timeout = time.Hour
		}
		if err := send(a, theOffer()); err != nil {
			t.Fatal(err)
		}
		c, _, err := s.Answer(ctx, b, nil, "", false, soonEnough())
		refused(t, c, err)
		if got := declined(t, a); !strings.Contains(got, why) {
			t.Errorf("it declines for %q, not %q", got, why)
		}
		goOn(t, a, b)
	}
}

// Where the socket cannot be used, an offer waits for memory that another connection returns, but
// not for ever, and not if there will never be enough.
func TestAnOfferWaitsForMemory(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		ctx     context.Context
		bound   int64
		waits   bool
		timeout time.Duration
		gets    bool
	}{
		"which is returned":          {ctx: t.Context(), bound: serverRings, waits: true, timeout: time.Hour, gets: true},
		"which is returned too late": {ctx: t.Context(), bound: serverRings, waits: true, timeout: 10 * time.Millisecond},
		"and nobody wants it":        {ctx: ended, bound: serverRings, waits: true, timeout: time.Hour},
		"and need not":               {ctx: t.Context(), bound: serverRings, timeout: time.Hour},
		"and there is never enough":  {ctx: t.Context(), bound: serverRings - 1, waits: true, timeout: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			memory := NewMemory(test.bound, true)
			s := NewServer(memory)
			s.timeout = test.timeout
			if !memory.reserve(serverRings - 1) {
				t.Fatal("there is no memory at all")
			}
			a, b := sockets(t)
			type answer struct {
				c   *Conn
				err error
			}
			answered := make(chan answer, 1)
			go func() {
				c, _, err := s.Answer(test.ctx, b, nil, "", test.waits, soonEnough())
				answered <- answer{c, err}
			}()
			if !test.gets {
				if err := send(a, theOffer()); err != nil {
					t.Fatal(err)
				}
				got := soon(t, "the answer", answered)
				refused(t, got.c, got.err)
				if got := declined(t, a); !strings.Contains(got, "MaxSharedMemory") {
					t.Errorf("it declines for %q", got)
				}
				return
			}
			go func() {
				eventually(t, "the offer waits", func() bool {
					memory.mu.Lock()
					defer memory.mu.Unlock()
					return memory.freed != nil
				})
				memory.unreserve(1) // too little
				memory.unreserve(serverRings - 2)
			}()
			client, _, err := Offer(a, plenty)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Close() }()
			got := soon(t, "the answer", answered)
			if got.err != nil {
				t.Fatal(got.err)
			}
			_ = got.c.Close()
		})
	}
}

// A reply is what a server sends to an offer.
type reply struct {
	says  string
	files []int
}

// TestAClientsServerGoesWrong answers an offer in ways that no server should.
func TestAClientsServerGoesWrong(t *testing.T) {
	type wrong struct {
		answer func(k *kit) reply
		closes bool   // the server closes the connection afterwards
		rest   string // what was already read of the socket
		socket bool   // the connection stays a socket
		says   string // what the client sends next
		broken bool
	}
	yes := func(k *kit) string { return string(appendTerms(nil, k.terms)) }
	no := string(appendDecline(nil, "why not"))
	agreed := offer{version, features}.agreed()
	cases := map[string]wrong{
		"it says nothing":  {answer: func(*kit) reply { return reply{} }, closes: true},
		"half a line":      {answer: func(*kit) reply { return reply{says: Line[:5]} }, closes: true, rest: Line[:5]},
		"another protocol": {answer: func(*kit) reply { return reply{says: "HTTP/1.1 400 Bad Request"} }, rest: "HTTP/1.1 400 Bad Request"[:len(Line)], closes: true},
		"hardly a line":    {answer: func(*kit) reply { return reply{says: Line[:len(Line)-1] + "x"} }, socket: true, rest: Line[:len(Line)-1] + "x"},
		"a line alone":     {answer: func(*kit) reply { return reply{says: Line} }, closes: true},
		"half an answer":   {answer: func(k *kit) reply { return reply{says: yes(k)[:len(Line)+3], files: k.files} }, closes: true},
		"it declines":      {answer: func(*kit) reply { return reply{says: no} }, socket: true},
		"it sends with it": {answer: func(k *kit) reply { return reply{says: no, files: k.files} }, socket: true},
		"another verdict": {answer: func(k *kit) reply {
			return reply{says: Line + "x" + yes(k)[len(Line)+1:], files: k.files}
		}, broken: true},
	}
	for name, spoil := range map[string]func(*terms){
		"no version":             func(t *terms) { t.version = 0 },
		"a later version":        func(t *terms) { t.version = version + 1 },
		"an unknown feature":     func(t *terms) { t.features = 1 << 61 },
		"no ring":                func(t *terms) { t.layout.ring = 0 },
		"a ring that is small":   func(t *terms) { t.layout.ring = minRing / 2 },
		"a ring that is large":   func(t *terms) { t.layout.ring = 2 * maxRing },
		"a ring of odd size":     func(t *terms) { t.layout.ring = 3 * minRing },
		"no slabs":               func(t *terms) { t.layout.slabs = 0 },
		"slabs that do not fit":  func(t *terms) { t.layout.slabs = partAlign + 4096 },
		"more slabs than may be": func(t *terms) { t.layout.slabs = maxSlabs + partAlign },
		"a larger ring than is":  func(t *terms) { t.layout.ring *= 2 },
		"fewer slabs than are":   func(t *terms) { t.layout.slabs /= 2 },
	} {
		cases[name] = wrong{socket: true, says: "-", broken: true, answer: func(k *kit) reply {
			t := agreed
			spoil(&t)
			return reply{says: string(appendTerms(nil, t)), files: k.files}
		}}
	}
	cases["an answer that is too short"] = wrong{socket: true, says: "-", broken: true, answer: func(k *kit) reply {
		return reply{says: string(appendBody([]byte(Line+"+"), []byte{1, 0})), files: k.files}
	}}
	for n := range 6 {
		if n != answerFiles {
			cases[fmt.Sprintf("%d descriptors", n)] = wrong{socket: true, says: "-", answer: func(k *kit) reply {
				return reply{says: yes(k), files: slices.Repeat(k.files, 3)[:n]}
			}}
		}
	}
	for name, f := range wrongMemory {
		cases[name+" for memory"] = wrong{socket: true, says: "-", broken: true, answer: func(k *kit) reply {
			return reply{says: yes(k), files: []int{f(k), k.files[1]}}
		}}
	}
	for name, f := range wrongRoomSockets {
		cases[name+" for the room socket"] = wrong{socket: true, says: "-", broken: true, answer: func(k *kit) reply {
			return reply{says: yes(k), files: []int{k.files[0], f(k)}}
		}}
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t, func() {
				a, b := sockets(t)
				defer a.Close()
				defer b.Close()
				type offer struct {
					c    *Conn
					rest []byte
					err  error
				}
				offers := make(chan offer, 1)
				go func() {
					c, rest, err := Offer(a, plenty)
					offers <- offer{c, rest, err}
				}()
				said := make([]byte, 512)
				if n, err := b.Read(said); string(said[:n]) != string(theOffer()) || err != nil {
					t.Fatalf("the offer: %q, %v", said[:n], err)
				}
				k := newKit(t)
				defer k.close()
				if r := test.answer(k); r.says != "" {
					k.must(send(b, []byte(r.says), r.files...))
				}
				if test.closes {
					k.must(b.CloseWrite())
				}
				o := soon(t, "the offer", offers)
				c, rest, err := o.c, o.rest, o.err
				refused(t, c, err)
				if broken := errors.Is(err, errBroken); broken != test.broken {
					t.Error(err)
				}
				if string(rest) != test.rest {
					t.Errorf("%q is left, and %q should be", rest, test.rest)
				}
				if test.says != "" {
					got := make([]byte, 10)
					if n, err := b.Read(got); string(got[:n]) != test.says || err != nil {
						t.Errorf("the client says %q, %v", got[:n], err)
					}
				}
				if test.socket {
					goOn(t, a, b)
				}
			})
		})
	}
}

func TestAProcessOfAnotherUserGetsNoMemory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has sockets of another user's")
	}
	leavesNothing(t, func() {
		a, b := socketsOfNobody(t)
		defer a.Close()
		defer b.Close()
		c, rest, err := Offer(a, plenty)
		refused(t, c, err)
		if len(rest) > 0 || !strings.Contains(err.Error(), "user") {
			t.Errorf("%q is left, %v", rest, err)
		}
		goOn(t, a, b) // nothing was sent
		if err := send(a, theOffer()); err != nil {
			t.Fatal(err)
		}
		c, _, err = answer(b)
		refused(t, c, err)
		if why := declined(t, a); !strings.Contains(why, "user") {
			t.Errorf("it declines for %q", why)
		}
		goOn(t, a, b)
	})
}

// socketsOfNobody returns sockets that another user has made.
func socketsOfNobody(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	const same, nobody = ^uintptr(0), 65534
	var fds [2]int
	errs := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // if the user cannot be restored, the thread ends with the goroutine
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, same, nobody, same); e != 0 {
			errs <- e
			return
		}
		var err error
		fds, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, same, 0, same); e == 0 {
			runtime.UnlockOSThread()
		}
		errs <- err
	}()
	if err := <-errs; err != nil {
		t.Skip("another user's sockets cannot be made here:", err)
	}
	var err error
	if a, err = socketOf(fds[0]); err != nil {
		t.Fatal(err)
	}
	if b, err = socketOf(fds[1]); err != nil {
		t.Fatal(err)
	}
	return a, b
}
