package shm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// offered is how many descriptors an offer comes with: those of a side, and a
// bell's.
const offered = sideFiles + 1

// A kit is what a peer has to send, and may spoil before it does. All of it is
// closed in the end.
type kit struct {
	t     testing.TB
	id    nonce
	files []int // of a side
	bell  int
	undo  []func()
}

func newKit(t testing.TB, id nonce) *kit {
	t.Helper()
	k := &kit{t: t, id: id}
	s, files, err := newSide(id, plenty)
	k.must(err)
	near, far, err := pair()
	k.must(err)
	k.files, k.bell = files, far
	k.undo = append(k.undo, s.free, func() { _ = near.Close() }, func() { _ = unix.Close(far) }, func() { CloseFiles(files) })
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

// owns has fd closed in the end.
func (k *kit) owns(fd int) int {
	k.undo = append(k.undo, func() { _ = unix.Close(fd) })
	return fd
}

// offer returns all that comes with an offer.
func (k *kit) offer() []int { return append(slices.Clone(k.files), k.bell) }

// memory returns that of a size and with seals, which begins as a segment of a
// ring does.
func (k *kit) memory(size, ring, seals int, mark uint64, id nonce) int {
	k.t.Helper()
	fd, err := unix.MemfdCreate("nearcall", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	k.must(err)
	k.owns(fd)
	b := make(segment, controlIs)
	b.word(atMagic).Store(mark)
	b.word(atRing).Store(uint64(ring))
	copy(b[atNonce:], id[:])
	_, err = unix.Pwrite(fd, b[:min(size, len(b))], 0)
	k.must(err)
	k.must(unix.Ftruncate(fd, int64(size)))
	if seals != 0 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		k.must(err)
	}
	return fd
}

func (k *kit) unsealed(seal int) int {
	return k.memory(controlIs+ringSize, ringSize, seals&^seal, magic, k.id)
}

func (k *kit) sized(size, ring int) int { return k.memory(size, ring, seals, magic, k.id) }

func (k *kit) regularFile() int {
	f, err := os.CreateTemp(k.t.TempDir(), "")
	k.must(err)
	defer f.Close()
	k.must(f.Truncate(controlIs + ringSize))
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

// wrongSegments are descriptors that no side should take for a segment.
var wrongSegments = map[string]func(k *kit) int{
	"a regular file":          (*kit).regularFile,
	"a pipe":                  (*kit).pipe,
	"a socket":                func(k *kit) int { return k.socket(unix.AF_UNIX, unix.SOCK_STREAM) },
	"the bell":                func(k *kit) int { return k.bell },
	"memory without a seal":   func(k *kit) int { return k.memory(controlIs+ringSize, ringSize, 0, magic, k.id) },
	"memory that may shrink":  func(k *kit) int { return k.unsealed(unix.F_SEAL_SHRINK) },
	"memory that may grow":    func(k *kit) int { return k.unsealed(unix.F_SEAL_GROW) },
	"memory for all to write": func(k *kit) int { return k.unsealed(unix.F_SEAL_FUTURE_WRITE) },
	"memory to be sealed":     func(k *kit) int { return k.unsealed(unix.F_SEAL_SEAL) },
	"no memory":               func(k *kit) int { return k.sized(0, ringSize) },
	"memory of no page":       func(k *kit) int { return k.sized(100, ringSize) },
	"memory without a ring":   func(k *kit) int { return k.sized(controlIs, 0) },
	"a ring that is small":    func(k *kit) int { return k.sized(controlIs+leastRing/2, leastRing/2) },
	"a ring that is large":    func(k *kit) int { return k.sized(controlIs+2*mostRing, 2*mostRing) },
	"a ring of odd size":      func(k *kit) int { return k.sized(controlIs+3*leastRing, 3*leastRing) },
	"memory that goes on":     func(k *kit) int { return k.sized(controlIs+leastRing+1, leastRing) },
	"a ring of another size":  func(k *kit) int { return k.sized(controlIs+leastRing, 2*leastRing) },
	"another magic":           func(k *kit) int { return k.memory(controlIs+leastRing, leastRing, seals, magic+1, k.id) },
	"another nonce":           func(k *kit) int { return k.memory(controlIs+leastRing, leastRing, seals, magic, nonce{1}) },
	"memory for messages":     func(k *kit) int { return k.files[1] },
}

// wrongSlabs are those that no side should take for memory of messages.
var wrongSlabs = map[string]func(k *kit) int{
	"a regular file":         (*kit).regularFile,
	"a pipe":                 (*kit).pipe,
	"a socket":               func(k *kit) int { return k.socket(unix.AF_UNIX, unix.SOCK_STREAM) },
	"memory without a seal":  func(k *kit) int { return k.memory(slabsSize, 0, 0, 0, k.id) },
	"memory that may shrink": func(k *kit) int { return k.memory(slabsSize, 0, slabSeals&^unix.F_SEAL_SHRINK, 0, k.id) },
	"memory that may grow":   func(k *kit) int { return k.memory(slabsSize, 0, slabSeals&^unix.F_SEAL_GROW, 0, k.id) },
	"memory to be sealed":    func(k *kit) int { return k.memory(slabsSize, 0, slabSeals&^unix.F_SEAL_SEAL, 0, k.id) },
	"no memory":              func(k *kit) int { return k.memory(0, 0, slabSeals, 0, k.id) },
	"more than there may be": func(k *kit) int { return k.memory(mostSlabs+4096, 0, slabSeals, 0, k.id) },
}

// wrongSides are the descriptors of sides that no peer should take.
func wrongSides() map[string]func(k *kit) []int {
	all := map[string]func(k *kit) []int{
		"the other way round": func(k *kit) []int { return []int{k.files[1], k.files[0]} },
	}
	for name, f := range wrongSegments {
		all[name+" for a ring"] = func(k *kit) []int { return []int{f(k), k.files[1]} }
	}
	for name, f := range wrongSlabs {
		all[name+" for messages"] = func(k *kit) []int { return []int{k.files[0], f(k)} }
	}
	return all
}

// goOn shows that a connection of sockets goes on as one.
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

// refused shows that nothing takes a socket's place.
func refused(t testing.TB, c *Conn, err error) {
	t.Helper()
	if c != nil && err == nil {
		_ = c.Close()
	}
	if err == nil {
		t.Fatal("it is taken")
	}
}

// declined reads a server's answer that declines, and returns why.
func declined(t testing.TB, a *net.UnixConn) string {
	t.Helper()
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

// TestAServerDeclinesWhatItCannotTake offers wrong descriptors. The connection
// goes on as a socket.
func TestAServerDeclinesWhatItCannotTake(t *testing.T) {
	cases := make(map[string]func(k *kit) []int)
	for n := range 6 {
		if n != offered {
			cases[fmt.Sprintf("%d descriptors", n)] = func(k *kit) []int {
				return slices.Repeat(k.offer(), 2)[:n]
			}
		}
	}
	for name, f := range wrongSides() {
		cases[name] = func(k *kit) []int { return append(f(k), k.bell) }
	}
	for name, files := range cases {
		for how, before := range map[string]bool{"": false, ", read by somebody else": true} {
			t.Run(name+how, func(t *testing.T) {
				leavesNothing(t, func() {
					a, b := sockets(t)
					defer a.Close()
					defer b.Close()
					k := newKit(t, nonce{1, 2, 3})
					defer k.close()
					k.must(send(a, append([]byte(Line), k.id[:]...), files(k)...))
					var first []byte
					var got []int
					if before {
						first = make([]byte, 512)
						n, fds, err := Receive(b, first)
						k.must(err)
						first, got = first[:n], fds
					}
					c, rest, err := Answer(b, first, got, "", plenty)
					refused(t, c, err)
					if len(rest) > 0 {
						t.Errorf("%q is left", rest)
					}
					_ = declined(t, a)
					goOn(t, a, b)
				})
			})
		}
	}
}

func TestAServerDeclinesForAReason(t *testing.T) {
	leavesNothing(t, func() {
		a, b := sockets(t)
		defer a.Close()
		defer b.Close()
		k := newKit(t, nonce{1, 2, 3})
		defer k.close()
		k.must(send(a, append(append([]byte(Line), k.id[:]...), "more"...), k.offer()...))
		first := make([]byte, 512)
		n, files, err := Receive(b, first)
		k.must(err)
		reason := strings.Repeat("so it is; ", 100)
		c, rest, err := Answer(b, first[:n], files, reason, plenty)
		refused(t, c, err)
		if string(rest) != "more" {
			t.Errorf("%q is left", rest)
		}
		if why := declined(t, a); why != reason[:255] {
			t.Errorf("it declines for %q", why)
		}
		goOn(t, a, b)
	})
}

// TestAServersClientGoesWrong has clients go wrong after an offer that a server
// takes, or before it is complete.
func TestAServersClientGoesWrong(t *testing.T) {
	cases := map[string]struct {
		says   string // after the offer
		part   int    // of the offer that is sent, if not all
		bell   func(k *kit) int
		more   func(k *kit) []int // descriptors, with what it says
		socket bool               // the connection goes on as one
		broken bool
		taken  bool
	}{
		"it says nothing":                 {part: -1},
		"half a line":                     {part: 7},
		"half an offer":                   {part: len(Line) + 5},
		"no verdict":                      {},
		"it declines":                     {says: "-", socket: true},
		"a verdict that makes no sense":   {says: "x", broken: true},
		"a verdict and a bell, as it may": {says: "+\x01", taken: true},
		"a verdict with descriptors":      {says: "+", more: func(k *kit) []int { return []int{k.pipe(), k.bell} }, taken: true},
		"a no with descriptors":           {says: "-", more: func(k *kit) []int { return []int{k.pipe()} }, socket: true},
		"a pipe for a bell":               {says: "+", bell: (*kit).pipe},
		"a regular file for a bell":       {says: "+", bell: (*kit).regularFile},
		"memory for a bell":               {says: "+", bell: func(k *kit) int { return k.files[0] }},
		"a socket of a network as a bell": {says: "+", bell: func(k *kit) int { return k.socket(unix.AF_INET, unix.SOCK_STREAM) }, broken: true},
		"a bell that is connected to nobody": {
			says: "+", bell: func(k *kit) int { return k.socket(unix.AF_UNIX, unix.SOCK_STREAM) }, taken: true,
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t, func() {
				a, b := sockets(t)
				defer a.Close()
				defer b.Close()
				k := newKit(t, nonce{1, 2, 3})
				defer k.close()
				files := k.offer()
				if test.bell != nil {
					files[sideFiles] = test.bell(k)
				}
				offer := append([]byte(Line), k.id[:]...)
				switch {
				case test.part > 0:
					k.must(send(a, offer[:test.part], files...))
				case test.part == 0:
					k.must(send(a, offer, files...))
				}
				if test.says != "" {
					var more []int
					if test.more != nil {
						more = test.more(k)
					}
					k.must(send(a, []byte(test.says), more...))
				}
				if !test.socket {
					k.must(a.CloseWrite())
				}
				c, rest, err := Answer(b, nil, nil, "", plenty)
				if test.taken {
					k.must(err)
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
				if test.part != 0 {
					return
				}
				theirs := make([]byte, len(Line)+2+len(k.id))
				n, got, err := Receive(a, theirs)
				CloseFiles(got)
				if test.bell != nil { // it is looked at before the answer
					if string(theirs[:len(Line)+1]) != Line+"-" || len(got) > 0 || err != nil {
						t.Errorf("the answer: %q with %d descriptors, %v", theirs[:n], len(got), err)
					}
					return
				}
				if n != len(theirs) || len(got) != sideFiles || err != nil {
					t.Errorf("the answer: %q with %d descriptors, %v", theirs[:n], len(got), err)
				}
				if test.socket {
					goOn(t, a, b)
				}
			})
		})
	}
}

// A reply is what a server says to an offer.
type reply struct {
	says  string
	files []int
}

// TestAClientsServerGoesWrong answers an offer as no server should.
func TestAClientsServerGoesWrong(t *testing.T) {
	type wrong struct {
		answer func(k *kit) reply
		closes bool   // the server, then
		rest   string // what of the socket was read already
		socket bool   // the connection goes on as one
		says   string // the client, then
		broken bool
	}
	yes := func(k *kit) string { return string(answer(takes, string(k.id[:]))) }
	cases := map[string]wrong{
		"it says nothing":   {answer: func(*kit) reply { return reply{} }, closes: true},
		"half a line":       {answer: func(*kit) reply { return reply{says: Line[:5]} }, closes: true, rest: Line[:5]},
		"another protocol":  {answer: func(*kit) reply { return reply{says: "HTTP/1.1 400 Bad Request"} }, rest: "HTTP/1.1 400 Bad Request"[:len(Line)], closes: true},
		"hardly a line":     {answer: func(*kit) reply { return reply{says: Line[:len(Line)-1] + "x"} }, socket: true, rest: Line[:len(Line)-1] + "x"},
		"a line alone":      {answer: func(*kit) reply { return reply{says: Line} }, closes: true},
		"half a nonce":      {answer: func(k *kit) reply { return reply{says: yes(k)[:len(Line)+10], files: k.files} }, closes: true},
		"it declines":       {answer: func(*kit) reply { return reply{says: string(answer(declines, "why not"))} }, socket: true},
		"it sends with it":  {answer: func(k *kit) reply { return reply{says: string(answer(declines, "why not")), files: k.files} }, socket: true},
		"another verdict":   {answer: func(k *kit) reply { return reply{says: string(answer('x', string(k.id[:]))), files: k.files} }, broken: true},
		"another nonce":     {answer: func(k *kit) reply { return reply{says: string(answer(takes, "0123456789abcdef")), files: k.files} }, broken: true, socket: true, says: "-"},
		"a part of a nonce": {answer: func(k *kit) reply { return reply{says: string(answer(takes, string(k.id[:15]))), files: k.files} }, broken: true, socket: true, says: "-"},
	}
	for n := range 6 {
		if n != sideFiles {
			cases[fmt.Sprintf("%d descriptors", n)] = wrong{socket: true, says: "-", answer: func(k *kit) reply {
				return reply{says: yes(k), files: slices.Repeat(k.offer(), 2)[:n]}
			}}
		}
	}
	for name, f := range wrongSides() {
		cases[name] = wrong{socket: true, says: "-", broken: true, answer: func(k *kit) reply {
			return reply{says: yes(k), files: f(k)}
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
				n, files, err := Receive(b, said)
				CloseFiles(files)
				if n != len(Line)+len(nonce{}) || len(files) != offered || err != nil {
					t.Fatalf("the offer: %q with %d descriptors, %v", said[:n], len(files), err)
				}
				k := newKit(t, nonce(said[len(Line):n]))
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
		k := newKit(t, nonce{1, 2, 3})
		defer k.close()
		k.must(send(a, append([]byte(Line), k.id[:]...), k.offer()...))
		c, _, err = Answer(b, nil, nil, "", plenty)
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
		runtime.LockOSThread() // the thread ends with the goroutine if it cannot be what it was
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
