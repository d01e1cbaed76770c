package web

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// Package http makes a map entry of some 150 bytes from each field of a header, and a field can be
// as short as three bytes. So both the number of fields and their bytes are limited.
// MaxHeaderBytes allows one field for each fieldCost bytes. HTTP/2 counts as many bytes for each
// field in addition to its text. A small limit still allows the fields that browsers send.
const (
	fieldCost = 32 // bytes
	minFields = 100
)

// maxFields returns how many fields a header may have, given its limit in bytes.
func maxFields(headerBytes int) int { return max(headerBytes/fieldCost, minFields) }

// fieldsOf returns how many fields h has. One field of binary metadata may join several values of
// at least one byte each. Each value counts as a field.
func fieldsOf(h http.Header) (n int) {
	for name, values := range h {
		n += len(values)
		if !isBinary(name) {
			continue
		}
		for _, v := range values {
			n += strings.Count(v, ",")
		}
	}
	return n
}

// isBinary reports whether the field's values are base64 of metadata.
func isBinary(name string) bool {
	const suffix = "-bin"
	return len(name) >= len(suffix) && strings.EqualFold(name[len(name)-len(suffix):], suffix)
}

// A headerWatch sees what package http reads of the headers of requests.
//
// It counts the lines of a header while package http reads it, because a client may take a long time
// to send all of it. It counts all lines of each read. The last read may reach into the body, but if
// package http reads on, everything before belongs to the header. Lines that arrived together with
// the previous request are not counted, so [Server.answer] counts the fields again.
//
// It also looks for a Content-Length. If a request has both Transfer-Encoding and Content-Length, one
// server may read it as one request and another server as two. Package http obeys Transfer-Encoding
// and drops Content-Length from the header, but the connection must be closed after the answer (RFC
// 9112, section 6.1). Package http may have read the beginning of a header together with the previous
// request. Then a Content-Length of the previous request counts too, and the server closes a
// connection that could stay open. That happens only to clients that do not wait for an answer before
// they send the next request.
type headerWatch struct {
	reading bool // a header or what precedes it is being read
	lines   int

	buffer    int  // size of package http's buffer; 0 before the first read
	idle      bool // nothing was read since the last request
	matched   int  // how many bytes of contentLength the current line begins with; -1 if it is another field
	hasLength bool // the current header may have a Content-Length
}

const contentLength = "content-length" // in any case

// next is called when the state of the connection has changed, on the goroutine that reads
// headers, while no other goroutine reads.
func (h *headerWatch) next(state http.ConnState) {
	switch state {
	case http.StateActive: // the header was read
		h.reading, h.idle = false, false
	case http.StateIdle:
		h.reading, h.lines, h.idle = true, 0, true
	}
}

// ask is called before package http reads up to n bytes. n is the room in package http's buffer.
// Between requests package http reads as soon as fewer than four bytes are left in the buffer.
func (h *headerWatch) ask(n int) {
	if h.buffer == 0 {
		h.buffer = n
	}
	if h.idle && h.buffer-n < 4 {
		h.hasLength = false
	}
	h.idle = false
}

// add looks at b, the bytes that were just read.
func (h *headerWatch) add(b []byte) {
	if h.reading {
		h.lines += bytes.Count(b, []byte("\n"))
	}
	for i := 0; i < len(b); {
		if h.matched < 0 {
			n := bytes.IndexByte(b[i:], '\n')
			if n < 0 {
				return
			}
			i += n + 1
			h.matched = 0
			continue
		}
		c := b[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != contentLength[h.matched] {
			h.matched = -1
			continue
		}
		i++
		if h.matched++; h.matched == len(contentLength) {
			h.matched, h.hasLength = -1, true
		}
	}
}

// exceeds reports whether the header, as far as it was read, has more fields than the limit most.
func (h *headerWatch) exceeds(most int) bool { return h.reading && h.lines > most+1 }

var errFields = errors.New("the header of a request has too many fields")

// refuseFields answers a request whose header has too many fields already. The error makes package
// http close the connection. If the last line is incomplete, package http may write another answer
// before it closes the connection. refuseFields ends the writes, so that this other answer does
// not follow its own.
func (c *conn) refuseFields() error {
	c.session.leaveBodyUnread()
	c.session.limitWrites()
	text := tooManyFields(c.session.server.maxFields)
	_, _ = io.WriteString(c.Conn, "HTTP/1.1 431 "+http.StatusText(http.StatusRequestHeaderFieldsTooLarge)+
		"\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"+text+"\n")
	_ = c.CloseWrite()
	return &net.OpError{Op: "read", Err: errFields}
}

func tooManyFields(most int) string {
	return fmt.Sprintf("the header has more than %d fields", most)
}
