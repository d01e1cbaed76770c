package http1

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// A field of a header may take three bytes, of which package http makes an entry of a map:
// some 150 bytes. So fields are limited as well as their bytes. MaxHeaderBytes allows one
// for each fieldCost, which is what HTTP/2 counts for a field in addition to its bytes. A
// small limit still allows what browsers send.
const (
	fieldCost = 32 // bytes
	minFields = 100
)

// maxFields returns how many fields a header may have that may have so many bytes.
func maxFields(headerBytes int) int { return max(headerBytes/fieldCost, minFields) }

// fieldsOf returns how many fields h has. Binary metadata may join several in one, and
// empty ones cost a byte.
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

// A headerCount counts the lines of a header while package http reads it, as a client need
// not finish it for a while. It counts whole reads, and the last one may reach into the
// body. But all of what was read belongs to the header if package http reads on. What was
// read together with the request before is not counted: [Server.serve] counts again.
type headerCount struct {
	reading bool // a header, or what comes before it
	lines   int
}

// next is called when the state of the connection has changed, on the goroutine that reads
// headers and while no other reads.
func (h *headerCount) next(state http.ConnState) {
	switch state {
	case http.StateActive: // the header was read
		h.reading = false
	case http.StateIdle:
		*h = headerCount{reading: true}
	}
}

// add counts what was read.
func (h *headerCount) add(b []byte) {
	if h.reading {
		h.lines += bytes.Count(b, []byte("\n"))
	}
}

// exceeds reports, before more is read, whether the header has more than most fields and a
// request line.
func (h *headerCount) exceeds(most int) bool { return h.reading && h.lines > most+1 }

var errFields = errors.New("the header of a request has too many fields")

// refuseFields answers a request whose header has too many fields already. The error makes
// package http close the connection. It may write its own answer first, if the last
// line is not complete: that must not follow this one.
func (c *conn) refuseFields() error {
	c.session.stray()
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
