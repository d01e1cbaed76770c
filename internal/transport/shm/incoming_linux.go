package shm

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearcall/nearcall/internal/scmrights"
)

// incoming reads the handshake from a connection.
type incoming struct {
	from       net.Conn
	conn       *net.UnixConn // from as a unix socket; nil if it is another connection, whose offer is declined
	takesFiles bool          // accepts descriptors
	b          []byte        // read, but not consumed yet
	files      []int         // received, but not consumed yet
}

// expectLine consumes line, or fails if something else arrives. It never reads more bytes than
// line has.
func (in *incoming) expectLine(line string) error {
	for len(in.b) < len(line) && strings.HasPrefix(line, string(in.b)) {
		if err := in.readMore(len(line) - len(in.b)); err != nil {
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

// read consumes the next n bytes.
func (in *incoming) read(n int) ([]byte, error) {
	for len(in.b) < n {
		if err := in.readMore(n - len(in.b)); err != nil { // it reads no further, because the next bytes belong to the connection
			return nil, err
		}
	}
	head := in.b[:n]
	in.b = in.b[n:]
	return head, nil
}

// readBody consumes a length of one byte, and that many bytes.
func (in *incoming) readBody() ([]byte, error) {
	n, err := in.read(1)
	if err != nil {
		return nil, err
	}
	return in.read(int(n[0]))
}

// readMore reads at most n bytes.
func (in *incoming) readMore(n int) (err error) {
	b := make([]byte, n)
	if in.takesFiles {
		var files []int
		n, files, err = receive(in.conn, b)
		in.files = append(in.files, files...)
	} else {
		n, err = in.from.Read(b)
	}
	in.b = append(in.b, b[:n]...)
	return err
}

// peerClosed reports whether the peer has closed the socket, even if unread bytes are left. A peer
// may leave while it waits. Without this check, clients that come and go could make this side
// work and hold descriptors for more and more peers that have left.
func (in *incoming) peerClosed() (gone bool) {
	raw, err := in.conn.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		all := []unix.PollFd{{Fd: int32(fd)}}
		n, _ := unix.Poll(all, 0)
		gone = n > 0 && all[0].Revents&unix.POLLHUP != 0
	})
	return gone
}

func closeFiles(files []int) {
	for _, fd := range files {
		_ = unix.Close(fd)
	}
}

// maxFiles is the maximum of descriptors that a client receives with one read.
const maxFiles = 4

// receive reads from conn, with the descriptors that come with the bytes.
func receive(conn *net.UnixConn, b []byte) (n int, files []int, err error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
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

// send writes b, and files with its first byte.
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

// pair returns two connected sockets, the second as a descriptor.
func pair() (near *net.UnixConn, far int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("socketpair: %w", err)
	}
	if near, err = socketOf(fds[0]); err != nil {
		_ = unix.Close(fds[1])
		return nil, -1, err
	}
	return near, fds[1], nil
}

// socketOf takes ownership of fd, and fails if it is not a unix stream socket.
func socketOf(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "nearcall")
	defer f.Close()
	if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_STREAM {
		return nil, fmt.Errorf("%w: it sent a descriptor of something else than a stream socket", errBroken)
	}
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("a socket cannot be used: %w", err)
	}
	u, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close()
		return nil, fmt.Errorf("%w: it sent a descriptor of something else than a unix socket", errBroken)
	}
	scmrights.Refuse(u)
	return u, nil
}
