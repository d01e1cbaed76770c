package forward

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
)

// prefixLen is the length of what precedes each message in gRPC: whether it is
// compressed, and its length.
const prefixLen = 5

// window is how many bytes of a client's messages may wait for a handler. One message
// may be larger.
const window = 64 << 10

// messages is the body of a request.
//
// ServeHTTP reads a body as fast as it can, and keeps what the handler has not received,
// without bound. So where the client streams the body has no messages, only
// announcements: each is a message that says it is compressed, and consists of a
// ticket. When the handler receives it, it is decompressed, by the compressor of this
// package, which exchanges the ticket for the first message that waits here.
type messages struct {
	announces bool   // false where one message is due, which is then in the body
	ticket    ticket // where it announces
	rest      []byte // of what Read returns next; the reader's

	mu      sync.Mutex
	change  sync.Cond
	waiting [][]byte // what the handler has not received
	read    int      // how many of waiting the reader knows of
	size    int      // of waiting, prefixes included, in bytes
	end     error    // comes after waiting: io.EOF, or why the call failed
	closed  bool
}

// A ticket names the call whose next message the handler receives. It cannot be
// guessed: clients of the *grpc.Server on a network may name the compressor, too.
type ticket [16]byte

var tickets sync.Map // from ticket to *messages, of calls that run

func newMessages(announces bool) *messages {
	m := &messages{announces: announces}
	m.change.L = &m.mu
	if announces {
		_, _ = rand.Read(m.ticket[:]) // it never fails
		tickets.Store(m.ticket, m)
	}
	return m
}

// receive takes in what the client sends, as far as there is room for it, until s has
// ended. An error fails the call.
func (m *messages) receive(s grpc.ServerStream, fail context.CancelCauseFunc) {
	for n := 1; ; n++ {
		var next raw
		err := s.RecvMsg(&next)
		if !m.add(next.data, err) {
			if err != nil && err != io.EOF {
				fail(err)
			}
			return
		}
		if n == 2 && !m.announces {
			return // one too many, which the *grpc.Server will find
		}
	}
}

// add adds a message, or what comes after the last, and waits for room. It returns false
// when no more is wanted.
func (m *messages) add(message []byte, end error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.change.Broadcast()
	if m.end = end; end != nil {
		return false
	}
	m.waiting = append(m.waiting, message)
	m.size += len(message) + prefixLen
	for m.announces && m.size >= window && !m.closed {
		m.change.Wait()
	}
	return !m.closed
}

// errClosed is what reading returns after the end. A *grpc.Server knows these words, which
// are net/http's, and makes Canceled of them.
var errClosed = errors.New("forward: request body closed by handler")

// Read implements [io.Reader].
func (m *messages) Read(p []byte) (int, error) {
	if len(m.rest) == 0 {
		if err := m.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

// next waits for a message that was not read, and puts it, or its announcement, into rest.
// After a failure it waits for Close: the handler learns of it by its context.
func (m *messages) next() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for !m.closed && m.read == len(m.waiting) && m.end != io.EOF {
		m.change.Wait()
	}
	switch {
	case m.closed:
		return errClosed
	case m.read == len(m.waiting):
		return io.EOF
	}
	compressed, body := byte(1), m.ticket[:]
	if !m.announces {
		compressed, body = 0, m.waiting[m.read]
		m.waiting[m.read] = nil
	}
	m.read++
	m.rest = append(make([]byte, 0, prefixLen+len(body)), compressed)
	m.rest = append(binary.BigEndian.AppendUint32(m.rest, uint32(len(body))), body...)
	return nil
}

// take returns the first message that waits.
func (m *messages) take() ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.read == 0 {
		return nil, errClosed
	}
	first := m.waiting[0]
	m.waiting[0] = nil
	m.waiting = m.waiting[1:]
	m.read--
	m.size -= len(first) + prefixLen
	m.change.Broadcast()
	return first, nil
}

// Close implements [io.Closer]. ServeHTTP calls it at the end of the call, and waits then
// until Read has returned.
func (m *messages) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.change.Broadcast()
	return nil
}

// drop forgets the call.
func (m *messages) drop() {
	tickets.Delete(m.ticket)
	_ = m.Close()
}

// encodingName names the compressor that announcements are decompressed with.
const encodingName = "nearcall-forward"

func init() { encoding.RegisterCompressor(compressor{}) }

// compressor compresses nothing. It exchanges tickets for messages.
type compressor struct{}

func (compressor) Name() string { return encodingName }

// Decompress implements [encoding.Compressor]. The handler that receives calls it.
func (compressor) Decompress(r io.Reader) (io.Reader, error) {
	var t ticket
	if _, err := io.ReadFull(r, t[:]); err != nil {
		return nil, errors.New("forward: the compression " + encodingName + " is only for forwarded calls")
	}
	m, ok := tickets.Load(t)
	if !ok {
		return nil, errClosed
	}
	message, err := m.(*messages).take()
	if err != nil {
		return nil, err
	}
	return bytes.NewReader(message), nil
}

// Compress implements [encoding.Compressor]. A *grpc.Server compresses replies like their
// requests.
func (compressor) Compress(w io.Writer) (io.WriteCloser, error) { return uncompressed{w}, nil }

type uncompressed struct{ io.Writer }

func (uncompressed) Close() error { return nil }
