package web

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/wait"
)

const (
	firstRead = 4 << 10  // how much the reader reads at a time at first, in bytes
	largeRead = 32 << 10 // how much it reads at a time after that, if firstRead was not enough
	plenty    = 1 << 20  // how much of a body is read after the call has ended, in bytes
)

// growth bounds the capacity for a message that is still arriving, as a multiple of the bytes that
// have arrived. The announced length cannot be trusted: it costs the client nothing.
const growth = 4

// An inbox holds the bytes of a request's body that have arrived and were not received yet.
// Guarded by the stream's mu.
type inbox struct {
	data     bytes.Buffer // at most the window and one read
	err      error        // why nothing follows data: io.EOF at the end of the body; nil while more may come
	ended    bool         // the body was read to its end
	dropping bool         // nothing more is received
	dropped  int          // bytes that were dropped since dropping was set
	small    bool         // the writer reads the body, before it writes
	timeout  *time.Timer  // aborts the call if nothing more arrives for a while; nil for none
	receiver wait.Cond
	reader   wait.Cond
}

// partial is the position of Recv within the body. Only the callee's receiver uses it.
type partial struct {
	skip int64 // bytes of a refused message that have not arrived yet
	done bool  // the only message of the body was received
}

var errMalformed = fmt.Errorf("%w: the body of the request ends within a message", link.ErrBroken)

// read moves body into the inbox. It stops when the body ends, when the client has left, or
// when the call has ended and enough was read for the client to see the answer. The first reads
// are into buf.
func (s *stream) read(body io.Reader, buf []byte) {
	for {
		n, err := body.Read(buf)
		if !s.arrived(buf[:n], err) {
			return
		}
		if n == len(buf) && n < largeRead {
			buf = make([]byte, largeRead)
		}
	}
}

// arrived adds b to the inbox. err is the error that came with these bytes, or nil. arrived waits
// for room, and reports whether to read on.
func (s *stream) arrived(b []byte, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := &s.in
	if in.dropping {
		in.dropped += len(b)
	} else {
		in.data.Write(b)
	}
	if err != nil {
		s.bodyEndedLocked(err)
		return false
	}
	if len(b) > 0 {
		wait.Unpark(in.receiver.Wake())
	}
	for s.isFullLocked() && !in.dropping {
		if in.timeout != nil {
			in.timeout.Stop() // the client does not keep the call waiting
		}
		in.reader.Wait(&s.mu, nil)
	}
	if in.timeout != nil {
		in.timeout.Reset(closeTimeout)
	}
	return in.dropped < plenty
}

// bodyEndedLocked records that reading the body has ended with err.
func (s *stream) bodyEndedLocked(err error) {
	in := &s.in
	in.ended = err == io.EOF
	if in.timeout != nil {
		in.timeout.Stop()
	}
	if in.err == nil && in.ended {
		in.err = io.EOF
		wait.Unpark(in.receiver.Wake())
	}
	if !in.ended && !s.over {
		s.mu.Unlock()
		s.Abort(brokenBody(err))
		s.mu.Lock()
	}
}

var errHalfSent = link.Unprocessed{Err: errors.New("the server is stopping, and the rest of the request has not arrived")}

// If the call needs the whole body, limitBody aborts the call after closeTimeout without any of
// it.
func (s *stream) limitBody() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in := &s.in; s.request.single && !in.ended && !s.over && in.timeout == nil {
		in.timeout = time.AfterFunc(closeTimeout, func() { s.Abort(errHalfSent) })
		if s.isFullLocked() {
			in.timeout.Stop()
		}
	}
}

// isFullLocked reports whether the reader must wait for room.
func (s *stream) isFullLocked() bool { return !s.in.small && s.in.data.Len() >= s.window }

// bodyRead reports whether the body was read to its end.
func (s *stream) bodyRead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.in.ended
}

// brokenBody returns the reason for ending a call after reading its body has failed with err.
func brokenBody(err error) error {
	var network net.Error
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network) {
		return context.Canceled // the client has left
	}
	return fmt.Errorf("%w: the body of the request cannot be read: %w", link.ErrBroken, err)
}

func (s *stream) Recv(f *link.Frame) error {
	f.Reset()
	if f.Dst == nil {
		return s.recvEnd(f)
	}
	s.skip()
	var err error
	if s.request.kind.enveloped() {
		err = s.recvEnvelope(f)
	} else {
		err = s.recvBare(f)
	}
	switch {
	case err == io.EOF:
		f.EndSend = true
		return nil
	case errors.Is(err, link.ErrBroken):
		s.Abort(err) // the client learns what was wrong
	}
	return err
}

// recvEnd waits for the end of the body, or until there is a message. It leaves the message in the
// inbox.
func (s *stream) recvEnd(f *link.Frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.in.data.Len() == 0 && s.in.err == nil {
		s.in.receiver.Wait(&s.mu, nil)
	}
	if s.in.data.Len() > 0 || !s.request.kind.enveloped() && !s.partial.done && s.in.err == io.EOF {
		return nil
	}
	if s.in.err == io.EOF {
		f.EndSend = true
		return nil
	}
	return s.in.err
}

// recvBare receives the message of a body that is one message without an envelope.
func (s *stream) recvBare(f *link.Frame) error {
	if s.partial.done {
		return s.rest()
	}
	size := s.request.size
	if size > int64(f.Limit) {
		s.partial.done, s.partial.skip = true, size
		return &message.RecvError{Size: clampInt(size), Limit: f.Limit}
	}
	b, err := s.receive(min(int64(f.Limit), unlimited)+1, max(size, 0))
	if err == nil { // the body may be larger than the limit
		s.partial.done, s.partial.skip = true, unlimited
		return &message.RecvError{Size: len(b), Limit: f.Limit}
	}
	if err != io.EOF {
		return err
	}
	s.partial.done = true
	f.EndSend = true
	if err := s.decode(b, s.request.encoding != "" && len(b) > 0, f); err != nil {
		f.EndSend = false
		return err
	}
	return nil
}

// rest is called after the only message of a body. It returns io.EOF if the body ends there, or
// else an error.
func (s *stream) rest() error {
	_, err := s.receive(1, 0)
	if err == nil {
		return errMalformed
	}
	return err
}

// Flags of envelopes.
const (
	flagCompressed = 1
	flagEndStream  = 2   // of Connect: the end of a response
	flagTrailer    = 128 // of gRPC-Web: the trailer of a response
)

const (
	envelope  = 5       // length of an envelope's head, in bytes
	unlimited = 1 << 62 // more bytes than any body has
)

// recvEnvelope receives the next message.
func (s *stream) recvEnvelope(f *link.Frame) error {
	head, err := s.receive(envelope, envelope)
	if err == io.EOF && len(head) > 0 {
		return errMalformed
	}
	if err != nil {
		return err
	}
	flags, n := head[0], int64(binary.BigEndian.Uint32(head[1:]))
	switch {
	case flags&^flagCompressed != 0:
		return fmt.Errorf("%w: a message of the request has the flags %#x, which clients do not send", link.ErrBroken, flags)
	case n > int64(f.Limit):
		s.partial.skip = n
		return &message.RecvError{Size: clampInt(n), Limit: f.Limit}
	}
	b, err := s.receive(n, n)
	if err == io.EOF {
		return errMalformed
	}
	if err != nil {
		return err
	}
	if err := s.decode(b, flags&flagCompressed != 0, f); err != nil {
		return err
	}
	s.mu.Lock()
	f.EndSend = s.in.data.Len() == 0 && s.in.err == io.EOF
	s.mu.Unlock()
	return nil
}

// decode decodes a message into f. The error is a *message.RecvError.
func (s *stream) decode(b []byte, packed bool, f *link.Frame) error {
	err := f.DecodeBytes(b, packed, s.request.encoding)
	f.Got = err == nil
	return err
}

// receive returns the next n bytes of the body as they arrive. size is how many bytes are expected,
// and determines the capacity. If fewer than n bytes come, the error says why.
func (s *stream) receive(n, size int64) (b []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n > 0 {
		chunk, err := s.nextLocked(n)
		if err != nil {
			return b, err
		}
		if room := len(b) + len(chunk); room > cap(b) {
			b = slices.Grow(b, int(min(max(size, int64(room)), growth*int64(room)))-len(b))
		}
		b = append(b, chunk...)
		n -= int64(len(chunk))
	}
	return b, nil
}

// skip drops what is left of a message that was refused. If it does not come, the next step returns
// the error.
func (s *stream) skip() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.partial.skip > 0 {
		chunk, err := s.nextLocked(s.partial.skip)
		if err != nil {
			s.partial.skip = 0
			return
		}
		s.partial.skip -= int64(len(chunk))
	}
}

// nextLocked waits for bytes of the body and takes up to n of them. They stay valid while mu is
// held.
func (s *stream) nextLocked(n int64) ([]byte, error) {
	in := &s.in
	for in.data.Len() == 0 {
		if in.err != nil {
			return nil, in.err
		}
		in.receiver.Wait(&s.mu, nil)
	}
	wait.Unpark(in.reader.Wake())
	return in.data.Next(int(min(n, int64(in.data.Len())))), nil
}

func clampInt(n int64) int { return int(min(n, int64(^uint(0)>>1))) }
