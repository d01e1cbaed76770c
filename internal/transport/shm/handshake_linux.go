package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/scmrights"
)

// The server creates all that the two sides of a connection share, once it has checked that the
// client runs as the same user, and sends the descriptors to the client. It accepts no
// descriptors from a client: it would have to close them, and the close of a file that the peer
// has chosen can block forever.

// answerFiles is the number of descriptors in an answer that accepts an offer: the memory, and the
// client's end of the socket that announces room.
const answerFiles = 2

// Offer offers shared memory over conn, and returns the connection that replaces conn. Its memory
// is reserved from m. If it returns an error, conn stays a socket, and rest holds the bytes that
// were already read from it. If conn is broken, its next use returns the error.
func Offer(conn *net.UnixConn, m *Memory) (c *Conn, rest []byte, err error) {
	defer func() { count(err) }()
	if err := SameUser(conn); err != nil {
		return nil, nil, err
	}
	scmrights.Accept(conn)
	defer scmrights.Refuse(conn)
	in := incoming{from: conn, conn: conn, takesFiles: true}
	defer func() { closeFiles(in.files) }() // those that were not consumed
	if err := send(conn, appendOffer(nil, offer{version, features})); err != nil {
		return nil, nil, err
	}
	return in.answer(m)
}

// answer reads the server's answer to an offer, and sends the verdict.
func (in *incoming) answer(m *Memory) (*Conn, []byte, error) {
	if err := in.expectLine(Line); err != nil {
		return nil, in.b, fmt.Errorf("the server does not answer the offer: %w", err)
	}
	verdict, err := in.read(1)
	if err != nil {
		return nil, nil, err
	}
	body, err := in.readBody()
	switch {
	case err != nil:
		return nil, nil, err
	case verdict[0] == declines:
		return nil, nil, counters.Declined.New(fmt.Sprintf("the server declines: %s", body))
	case verdict[0] != takes:
		return nil, nil, fmt.Errorf("%w: its answer makes no sense", errBroken)
	}
	c, err := in.open(body, m)
	if err != nil {
		return nil, nil, errors.Join(err, send(in.conn, []byte{declines}))
	}
	if err := send(in.conn, []byte{takes}); err != nil {
		c.closeAfterError()
		return nil, nil, err
	}
	return c, nil, nil
}

// open opens the connection that an answer describes.
func (in *incoming) open(body []byte, m *Memory) (*Conn, error) {
	t, err := parseTerms(body)
	if err != nil {
		return nil, err
	}
	if n := len(in.files); n != answerFiles {
		return nil, fmt.Errorf("%d descriptors have come with the answer, not %d: something is between the two sides, or a limit was reached", n, answerFiles)
	}
	memory, far := in.files[0], in.files[1]
	in.files = nil
	space, err := socketOf(far)
	if err != nil {
		_ = unix.Close(memory)
		return nil, err
	}
	f, err := openFile(memory, t.layout)
	if err != nil {
		_ = space.Close()
		return nil, err
	}
	defer f.release()
	c, err := newConn(f, false, m, in.conn, space)
	if err == nil {
		if err = c.allocateFirst(false); err != nil {
			c.closeAfterError()
			c = nil
		}
	}
	return c, err
}

// A Server answers offers. It is safe for concurrent use.
type Server struct {
	memory  *Memory
	slots   slots
	timeout time.Duration // for a client to complete its offer or to confirm the answer, and for other connections to return memory
}

// NewServer returns a Server whose connections reserve their memory from m.
func NewServer(m *Memory) *Server {
	return &Server{memory: m, slots: newSlots(maxHandshakes), timeout: answerTimeout}
}

const answerTimeout = 5 * time.Second

// serverRings is how many bytes a server reserves for a connection's rings: see newSides.
const serverRings = 2 * (controlIs + ringSize)

// Answer answers the offer on conn, of which first was already read. It returns the connection
// that replaces conn. If it returns an error, conn stays a socket, and rest holds the bytes that
// were already read from it. If conn is broken, its next use returns the error. If reason is not
// empty, Answer declines every offer; otherwise conn must be a *net.UnixConn. waits says that the
// upgrade is required: without memory Answer waits a while for other connections to return some.
// deadline is conn's, which Answer restores if conn stays usable. ctx ends when the caller no
// longer wants the connection.
func (s *Server) Answer(ctx context.Context, conn net.Conn, first []byte, reason string, waits bool, deadline time.Time) (c *Conn, rest []byte, err error) {
	defer func() { count(err) }()
	hurry := func() { _ = conn.SetDeadline(earlier(deadline, time.Now().Add(s.timeout))) }
	relax := func() { _ = conn.SetDeadline(deadline) }
	hurry()
	in := incoming{from: conn, b: first}
	in.conn, _ = conn.(*net.UnixConn)
	if err := in.expectLine(Line); err != nil {
		return nil, nil, err
	}
	body, err := in.readBody()
	if err != nil {
		return nil, nil, err
	}
	var refused error
	try := func() error {
		if refused = s.admit(ctx, in.conn, reason, hurry); refused == nil {
			c, refused, err = s.agree(&in, body)
		}
		return refused
	}
	if waits && s.memory.max >= serverRings {
		s.retry(ctx, try)
	} else {
		_ = try()
	}
	if refused != nil {
		hurry() // waiting took time
		err = refused
		if _, failed := conn.Write(appendDecline(nil, refused.Error())); failed != nil {
			return nil, nil, errors.Join(refused, failed)
		}
	}
	if err == nil || refused != nil || errors.Is(err, errDeclined) {
		relax()
	}
	return c, in.b, err
}

// retry calls try. While the error is errMemory, retry calls it again whenever there is room for a
// connection, but no longer than for s.timeout.
func (s *Server) retry(ctx context.Context, try func() error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	more := s.memory.more()
	for errors.Is(try(), errMemory) {
		for room := false; !room; room = s.memory.max-s.memory.used.Load() >= serverRings {
			select {
			case <-more:
			case <-ctx.Done():
				return
			}
			more = s.memory.more() // before try looks for room, so that bytes freed later are not missed
		}
	}
}

// agree proposes a connection, waits for the client's verdict, and then releases the slot. If the
// offer must be declined, refused says why, and nothing was sent.
func (s *Server) agree(in *incoming, body []byte) (c *Conn, refused, err error) {
	defer s.slots.release(in.conn)
	if in.peerClosed() {
		return nil, nil, io.EOF
	}
	if c, refused = s.propose(in.conn, body); refused != nil {
		return nil, refused, nil
	}
	if err = in.confirmed(); err == nil {
		err = c.allocateFirst(true) // only now, so that a client that does not confirm costs no memory
	}
	if err != nil {
		c.closeAfterError()
		return nil, nil, err
	}
	return c, nil, nil
}

// earlier returns the earlier of two deadlines, the first of which can be zero for none.
func earlier(deadline, other time.Time) time.Time {
	if !deadline.IsZero() && deadline.Before(other) {
		return deadline
	}
	return other
}

// admit waits for a slot in which to answer an offer, or returns why the offer is declined.
// Offers that are declined for another reason do not wait for slots, so only processes of this
// user can delay one another.
func (s *Server) admit(ctx context.Context, conn *net.UnixConn, reason string, start func()) error {
	if reason != "" {
		return errors.New(reason)
	}
	if err := SameUser(conn); err != nil {
		return err
	}
	return s.slots.acquire(ctx, conn, s.timeout, start)
}

// propose creates a connection for a client's offer, and sends the client's part of it to the
// client. If it fails, nothing was sent.
func (s *Server) propose(conn *net.UnixConn, body []byte) (c *Conn, err error) {
	o, err := parseOffer(body)
	if err != nil {
		return nil, err
	}
	t := o.agreed()
	f, err := newFile(t.layout)
	if err != nil {
		return nil, err
	}
	defer f.release()
	space, far, err := pair()
	if err != nil {
		return nil, err
	}
	defer unix.Close(far)
	if c, err = newConn(f, true, s.memory, conn, space); err != nil {
		return nil, err
	}
	if err = send(conn, appendTerms(nil, t), int(f.Fd()), far); err != nil {
		c.closeAfterError()
		return nil, err
	}
	return c, nil
}

var errDeclined = counters.Declined.New("the client declines")

// confirmed waits for the client's verdict, and returns an error if the client
// declines.
func (in *incoming) confirmed() error {
	verdict, err := in.read(1)
	switch {
	case err != nil:
		return err
	case verdict[0] == declines:
		return errDeclined
	case verdict[0] != takes || len(in.b) > 0:
		return fmt.Errorf("%w: its verdict makes no sense", errBroken)
	}
	return nil
}

// SameUser returns an error if the peer's process must not be trusted with shared memory.
func SameUser(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return fmt.Errorf("the system does not say whose process the peer is: %w", credErr)
	}
	return trusts(uint32(os.Geteuid()), cred.Uid, unknownOnce)
}

// count counts the outcome of an offer.
func count(err error) {
	if err != nil {
		counters.Shm.Fallbacks.Add(1)
		return
	}
	counters.Shm.Upgrades.Add(1)
	counters.Shm.Connections.Add(1)
}

// trusts returns an error unless this process may share memory with the peer's. mine is the user
// of this process, and peers is the user of the peer's process, as SO_PEERCRED numbers users: the
// two must be equal. unknown returns the overflow user: see unknownUser.
func trusts(mine, peers uint32, unknown func() (user uint32, ok bool)) error {
	if peers != mine {
		return counters.OtherUser.New(fmt.Sprintf("the peer is a process of user %d, this is one of user %d", peers, mine))
	}
	if user, ok := unknown(); ok && peers == user {
		return counters.OtherUser.New(fmt.Sprintf("the peer is a process of user %d, which stands for any user that this namespace does not know", peers))
	}
	return nil
}

// unknownUser returns the number that stands for all users that have no number in this namespace.
// ok is false if this namespace maps every user, as the initial one does: then that number is an
// ordinary user. If the system does not tell, there may be such users.
func unknownUser(read func(file string) ([]byte, error)) (user uint32, ok bool) {
	const usual = 65534
	if b, err := read("/proc/self/uid_map"); err == nil && strings.Join(strings.Fields(string(b)), " ") == "0 0 4294967295" {
		return 0, false
	}
	b, _ := read("/proc/sys/kernel/overflowuid")
	uid, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil {
		return usual, true
	}
	return uint32(uid), true
}

// unknownOnce reads the files once. An offer costs a client little, and reading them would be a
// fifth of what the offer costs the server.
var unknownOnce = sync.OnceValues(func() (uint32, bool) { return unknownUser(os.ReadFile) })
