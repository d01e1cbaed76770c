package http1

import (
	"bytes"
	"net/http"
)

// If a request has both Transfer-Encoding and Content-Length, one server may read it as one
// request and another server as two. Package http obeys Transfer-Encoding and drops Content-Length
// from the header, but the connection must be closed after the answer (RFC 9112, section 6.1). So
// [lengths] looks for a Content-Length in the bytes that package http reads.
//
// Package http may have read the beginning of a header together with the previous request, up to
// the size of its buffer. A Content-Length that lengths finds there may belong to the previous
// request. If it does, the server closes the connection although it could stay open. That happens
// only to clients that do not wait for an answer before they send the next request.
type lengths struct {
	buffer int   // size of package http's buffer; 0 before the first read
	read   int64 // how many bytes were read so far
	start  int64 // a lower bound for how many of these precede the current request
	idle   bool  // nothing was read since the last request

	matched int   // how many bytes of contentLength the current line begins with; -1 if it is another field
	last    int64 // how many bytes were read up to the last line that begins with contentLength
}

const contentLength = "content-length" // in any case

// next is called whenever the method next of headerCount is called.
func (l *lengths) next(state http.ConnState) {
	switch state {
	case http.StateActive:
		l.idle = false
	case http.StateIdle:
		l.idle, l.start = true, max(l.start, l.read-int64(l.buffer))
	}
}

// ask is called before package http reads up to n bytes. n is the room in package http's buffer.
// Between requests package http reads as soon as fewer than four bytes are left in the buffer.
func (l *lengths) ask(n int) {
	if l.buffer == 0 {
		l.buffer = n
	}
	if left := l.buffer - n; l.idle && left < 4 {
		l.start = l.read - int64(left)
	}
	l.idle = false
}

// add searches b, the bytes that were just read.
func (l *lengths) add(b []byte) {
	for i := 0; i < len(b); {
		if l.matched < 0 {
			n := bytes.IndexByte(b[i:], '\n')
			if n < 0 {
				break
			}
			i += n + 1
			l.matched = 0
			continue
		}
		c := b[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != contentLength[l.matched] {
			l.matched = -1
			continue
		}
		i++
		if l.matched++; l.matched == len(contentLength) {
			l.matched, l.last = -1, l.read+int64(i)
		}
	}
	l.read += int64(len(b))
}

// found reports whether the header of the current request may have a Content-Length. It is called
// once the whole header was read.
func (l *lengths) found() bool { return l.last > l.start }
