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

// prefixLen is the length of gRPC's message header: a flag byte that says whether the
// message is compressed, and four bytes of length.
const prefixLen = 5

// window limits the bytes of a client's messages that wait for a handler. A single message
// may be larger.
const window = 64 << 10

// messages is the body of a request.
//
// ServeHTTP reads a body as fast as it can, and buffers without limit what the handler has not
// received. So if the client streams, the body has announcements instead of messages. An
// announcement is a message that is marked as compressed and consists of a token. When the
// handler receives an announcement, grpc-go decompresses it with this package's compressor, which
// exchanges the token for the first waiting message.
type messages struct {
	announces bool   // false if the client sends one message, which is then in the body
	token     token  // set if announces
	rest      []byte // the next bytes for Read; used only by the goroutine that reads

	mu      sync.Mutex
	change  sync.Cond
	waiting [][]byte // messages that the handler has not received
	read    int      // how many of waiting were read from the body
	size    int      // of waiting, including prefixes, in bytes
	end     error    // the end after waiting: io.EOF, or why the call failed; nil while more messages may come
	closed  bool
}

// A token identifies the call whose next message the handler receives. A token must be
// impossible to guess, because clients that reach the *grpc.Server over a network can name the
// compressor, too.
type token [16]byte

var tokens sync.Map // from token to *messages, of running calls

func newMessages(announces bool) *messages {
	m := &messages{announces: announces}
	m.change.L = &m.mu
	if announces {
		_, _ = rand.Read(m.token[:]) // never fails
		tokens.Store(m.token, m)
	}
	return m
}

// receive receives the client's messages, while there is room for them, until s ends. An
// error fails the call.
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
			return // one message too many: the *grpc.Server fails the call
		}
	}
}

// add adds a message and waits for room. If end is set, add records end instead.
// It returns false if no more messages are wanted.
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

// errClosed is the error of Read after Close. Its last four words are from an error text of
// net/http, which grpc-go recognises and turns into Canceled.
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

// next waits for the next message and puts it, or its announcement, into rest. If the call
// failed, next waits for Close: the handler learns of the failure from its context.
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
	compressed, body := byte(1), m.token[:]
	if !m.announces {
		compressed, body = 0, m.waiting[m.read]
		m.waiting[m.read] = nil
	}
	m.read++
	m.rest = append(make([]byte, 0, prefixLen+len(body)), compressed)
	m.rest = append(binary.BigEndian.AppendUint32(m.rest, uint32(len(body))), body...)
	return nil
}

// pop removes and returns the first waiting message, which must have been announced.
func (m *messages) pop() ([]byte, error) {
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

// Close implements [io.Closer]. At the end of the call ServeHTTP calls it and waits until
// Read has returned.
func (m *messages) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.change.Broadcast()
	return nil
}

// drop closes m and invalidates its token.
func (m *messages) drop() {
	tokens.Delete(m.token)
	_ = m.Close()
}

// encodingName is the name of the compressor that decompresses announcements.
const encodingName = "nearcall-forward"

func init() { encoding.RegisterCompressor(compressor{}) }

// compressor compresses nothing. It exchanges tokens for messages.
type compressor struct{}

func (compressor) Name() string { return encodingName }

// Decompress implements [encoding.Compressor]. It runs when the handler receives a message.
func (compressor) Decompress(r io.Reader) (io.Reader, error) {
	var t token
	if _, err := io.ReadFull(r, t[:]); err != nil {
		return nil, errors.New("forward: the compression " + encodingName + " is only for forwarded calls")
	}
	m, ok := tokens.Load(t)
	if !ok {
		return nil, errClosed
	}
	message, err := m.(*messages).pop()
	if err != nil {
		return nil, err
	}
	return bytes.NewReader(message), nil
}

// Compress implements [encoding.Compressor]. It leaves data unchanged. It is called because
// a *grpc.Server compresses replies with the compressor of the request.
func (compressor) Compress(w io.Writer) (io.WriteCloser, error) { return uncompressed{w}, nil }

type uncompressed struct{ io.Writer }

func (uncompressed) Close() error { return nil }
