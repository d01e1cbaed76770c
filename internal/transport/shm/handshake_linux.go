package shm

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// An offer is Line and a nonce, with the descriptors of the client's memory and of
// a socket for the second bell. The answer is Line, a verdict, how many bytes
// follow and, of a server that takes the offer, the nonce, with the descriptors of
// its memory; of one that declines, why. The client then says a verdict of its
// own: it, too, may find that it cannot use what it was sent. The nonce is in the
// segment as well: descriptors that arrive with it have come with the offer, over
// this very socket. What passes bytes on between two others does not pass them on.
const (
	takes    = '+'
	declines = '-'

	// most descriptors that are taken from a peer, whatever it sends.
	mostFiles = 4
)

// Offer makes a client's offer over conn, and returns what takes conn's place, with
// memory out of m. An error says why nothing does: conn then goes on as a socket,
// of which rest was read already. Where it is of no use any more that shows.
func Offer(conn *net.UnixConn, m *Memory) (c *Conn, rest []byte, err error) {
	defer func() { count(err) }()
	if err := sameUser(conn); err != nil {
		return nil, nil, err
	}
	var id nonce
	_, _ = rand.Read(id[:])
	mine, files, err := newSide(id, m)
	if err != nil {
		return nil, nil, err
	}
	defer CloseFiles(files)
	space, far, err := pair()
	if err != nil {
		mine.free()
		return nil, nil, err
	}
	defer unix.Close(far)
	in := incoming{conn: conn}
	defer in.close()
	if err = send(conn, append([]byte(Line), id[:]...), append(files, far)...); err == nil {
		c, rest, err = in.agreed(id, mine, space)
	}
	if err != nil {
		mine.free()
		_ = space.Close()
	}
	return c, rest, err
}

// agreed hears the answer to an offer.
func (in *incoming) agreed(id nonce, mine side, space *net.UnixConn) (*Conn, []byte, error) {
	if err := in.begins(Line); err != nil {
		return nil, in.b, fmt.Errorf("the server does not answer the offer: %w", err)
	}
	head, err := in.read(2)
	if err != nil {
		return nil, nil, err
	}
	verdict := head[0]
	body, err := in.read(int(head[1]))
	switch {
	case err != nil:
		return nil, nil, err
	case verdict == declines:
		return nil, nil, fmt.Errorf("the server declines: %s", body)
	case verdict != takes:
		return nil, nil, fmt.Errorf("%w: its answer makes no sense", errBroken)
	}
	c, err := in.use(id, body, mine, space)
	if err != nil {
		return nil, nil, errors.Join(err, send(in.conn, []byte{declines}))
	}
	if err := send(in.conn, []byte{takes}); err != nil {
		c.theirs.free()
		return nil, nil, err
	}
	return c, nil, nil
}

// use makes a connection of what a server has sent.
func (in *incoming) use(id nonce, body []byte, mine side, space *net.UnixConn) (*Conn, error) {
	switch n := len(in.files); {
	case string(body) != string(id[:]):
		return nil, fmt.Errorf("%w: it answers another offer", errBroken)
	case n != sideFiles:
		return nil, fmt.Errorf("%d descriptors have come with the answer, not %d: perhaps a limit was reached", n, sideFiles)
	}
	theirs, err := openSide(in.files, id)
	if err != nil {
		return nil, err
	}
	c, err := newConn(mine, theirs, in.conn, space)
	if err != nil {
		theirs.free()
	}
	return c, err
}

// Answer answers the offer that a server's connection begins with: first is what
// was read of it, with the descriptors that came along, which are Answer's from
// now on. It returns what takes conn's place, with memory out of m. An error says
// why nothing does: conn then goes on as a socket, of which rest was read already.
// Where it is of no use any more that shows. A reason that is not empty declines
// whatever is offered.
func Answer(conn *net.UnixConn, first []byte, files []int, reason string, m *Memory) (c *Conn, rest []byte, err error) {
	defer func() { count(err) }()
	in := incoming{conn: conn, b: first, files: files}
	defer in.close()
	head, err := in.read(len(Line) + len(nonce{}))
	if err != nil {
		return nil, nil, err
	}
	id := nonce(head[len(Line):])
	var refused error
	if reason != "" {
		refused = errors.New(reason)
	} else {
		refused = sameUser(conn)
	}
	var made *Conn
	if refused == nil {
		made, files, refused = in.take(id, m)
	}
	if refused != nil {
		why := refused.Error()
		why = why[:min(len(why), 255)]
		return nil, in.b, errors.Join(refused, send(conn, answer(declines, why)))
	}
	defer CloseFiles(files)
	if err := in.settle(id, files); err != nil {
		made.abandon()
		return nil, in.b, err
	}
	return made, nil, nil
}

func answer(verdict byte, body string) []byte {
	return append(append([]byte(Line), verdict, byte(len(body))), body...)
}

// take makes a connection of what a client offers. The descriptors are for the
// client.
func (in *incoming) take(id nonce, m *Memory) (c *Conn, files []int, err error) {
	if n := len(in.files); n != sideFiles+1 {
		return nil, nil, fmt.Errorf("%d descriptors have come with the offer, not %d: something is between the two sides, or a limit was reached", n, sideFiles+1)
	}
	theirs, err := openSide(in.files, id)
	if err != nil {
		return nil, nil, err
	}
	fd := in.files[sideFiles]
	in.files = in.files[:sideFiles]
	space, err := socketOf(fd)
	if err != nil {
		theirs.free()
		return nil, nil, err
	}
	mine, files, err := newSide(id, m)
	if err != nil {
		theirs.free()
		_ = space.Close()
		return nil, nil, err
	}
	if c, err = newConn(mine, theirs, in.conn, space); err != nil {
		mine.free()
		theirs.free()
		_ = space.Close()
		CloseFiles(files)
	}
	return c, files, err
}

// settle tells a client that its offer is taken, and returns why it does not use
// the answer.
func (in *incoming) settle(id nonce, files []int) error {
	if err := send(in.conn, answer(takes, string(id[:])), files...); err != nil {
		return err
	}
	verdict, err := in.read(1)
	switch {
	case err != nil:
		return err
	case verdict[0] == declines:
		return errors.New("the client declines")
	case verdict[0] != takes || len(in.b) > 0:
		return fmt.Errorf("%w: its verdict makes no sense", errBroken)
	}
	return nil
}

// incoming is what comes over a socket, with descriptors.
type incoming struct {
	conn  *net.UnixConn
	b     []byte // not consumed yet
	files []int
}

// begins takes line, or returns why it does not come next. It reads no more than
// the beginning of what is something else.
func (in *incoming) begins(line string) error {
	for len(in.b) < len(line) && strings.HasPrefix(line, string(in.b)) {
		if err := in.more(len(line) - len(in.b)); err != nil {
			return err
		}
	}
	rest, found := bytes.CutPrefix(in.b, []byte(line))
	if !found {
		return fmt.Errorf("it says %.20q", in.b)
	}
	in.b = rest
	return nil
}

// read returns the next n bytes.
func (in *incoming) read(n int) ([]byte, error) {
	for len(in.b) < n {
		if err := in.more(n - len(in.b)); err != nil { // and no more: what follows is not for us
			return nil, err
		}
	}
	head := in.b[:n]
	in.b = in.b[n:]
	return head, nil
}

// more reads at most n bytes.
func (in *incoming) more(n int) error {
	b := make([]byte, n)
	n, files, err := Receive(in.conn, b)
	in.files = append(in.files, files...)
	in.b = append(in.b, b[:n]...)
	return err
}

// close closes the descriptors that nobody has taken over.
func (in *incoming) close() { CloseFiles(in.files) }

// CloseFiles closes descriptors that have come over a socket.
func CloseFiles(files []int) {
	for _, fd := range files {
		_ = unix.Close(fd)
	}
}

// Receive reads from conn, with the descriptors that come along.
func Receive(conn *net.UnixConn, b []byte) (n int, files []int, err error) {
	oob := make([]byte, unix.CmsgSpace(4*mostFiles))
	n, oobn, _, _, err := conn.ReadMsgUnix(b, oob)
	if n, oobn = max(n, 0), max(oobn, 0); n == 0 && err == nil {
		err = io.EOF
	}
	messages, wrong := unix.ParseSocketControlMessage(oob[:oobn])
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
			files = append(files, fds...)
		}
	}
	if err == nil && wrong != nil {
		err = wrong
	}
	return n, files, err
}

// send writes b, with descriptors.
func send(conn *net.UnixConn, b []byte, files ...int) error {
	var oob []byte
	if len(files) > 0 {
		oob = unix.UnixRights(files...)
	}
	n, _, err := conn.WriteMsgUnix(b, oob, nil)
	if err == nil && n < len(b) {
		_, err = conn.Write(b[n:])
	}
	return err
}

// pair returns two sockets that are connected, the second by its descriptor.
func pair() (near *net.UnixConn, far int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("socketpair: %w", err)
	}
	if near, err = socketOf(fds[0]); err != nil {
		_ = unix.Close(fds[1])
	}
	return near, fds[1], err
}

// socketOf takes fd over.
func socketOf(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "nearcall")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close()
		return nil, fmt.Errorf("%w: it sent a descriptor of something else than a unix socket", errBroken)
	}
	return u, nil
}

// sameUser returns why the process at the other end is not to be trusted with
// shared memory.
func sameUser(conn *net.UnixConn) error {
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
	return trusts(uint32(os.Geteuid()), cred.Uid, os.ReadFile)
}
