//go:build linux

package attack

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Attacks of clients that speak HTTP/1.1. Package http reads what they send, and package
// web makes calls of it.
var http1Attacks = []*Attack{
	{
		Name: "http1-fields", Path: overTCP, Full: 1_000, Short: 100,
		What:   "%s calls of HTTP/1.1 on connections of their own, with as many header fields as are allowed, left open in the header or after it",
		Before: "1.13 GB for half as many, with 12,900 fields",
		Known:  &Excuse{Each: 640 << 10, CPU: 60, Why: "package http makes a map of a header, of which a field of 5 bytes takes some 100; MaxHeaderListSize bounds it, by default to 2,048 fields"},
		Run:    fieldsHeld,
	},
	{
		Name: "http1-fields-again", Path: overTCP, Full: 4_000, Short: 50,
		What:   "%s calls of HTTP/1.1 in turn with as many header fields",
		Before: "12.2 s of CPU for half as many, with 12,900 fields",
		Known:  &Excuse{CPU: 60, Why: "package http and the metadata take some 700 ns for a field, and the attacker only writes prepared bytes"},
		Run:    func(a *Attacker) error { return a.flood(codeAndText{200, withFields(small)}) },
	},
	{
		Name: "http1-silent", Path: overTCP, Full: 5_000, Short: 200,
		What:   "%s connections that send a half of a line or of a header of HTTP/1.1 and no more",
		Before: "not measured",
		Known:  &Excuse{Each: 24 << 10, Why: "a connection takes some 14 kB of itself; how many there are is for the listener to limit"},
		Run:    func(a *Attacker) error { return a.scatter(small, halves...) },
	},
	{
		Name: "http1-waiting", Path: overTCP, Full: 5_000, Short: 200,
		What:   "%s calls of HTTP/1.1, on connections of their own, whose bodies do not come, or announce a message of 4 MiB or 4 GiB",
		Before: "not measured",
		Known:  &Excuse{Each: 64 << 10, Why: "a connection with a call takes some 30 kB of itself; how many there are is for the listener to limit"},
		Run:    func(a *Attacker) error { return a.scatter(small, unfinished...) },
	},
	{
		Name: "http1-gzip", Path: overTCP, Full: 1_000, Short: 10,
		What:   "%s messages of HTTP/1.1, of 4 and 8 MiB alternately, compressed to 4 and 8 kB",
		Before: "not measured",
		Known:  &Excuse{CPU: 200, Why: "a byte may become a thousand; MaxRecvMsgSize bounds a message, and no more of a larger one is decompressed"},
		Run:    gzipBombs,
	},
	{
		Name: "http1-bodies", Path: overTCP, Full: 80, Short: 1,
		What:   "%s bodies of 1 MiB of JSON over HTTP/1.1: nested lists, unknown fields, empty messages, chunks of a byte",
		Before: "not measured",
		Known:  &Excuse{CPU: 200, Why: "protobuf takes some 40 ns for a byte of JSON, and 180 for one of empty messages, and the attacker only writes prepared bytes"},
		Run:    jsonBodies,
	},
	{
		Name: "http1-posts", Path: overTCP, Full: 200_000, Short: 2_000,
		What:   "%s small calls of HTTP/1.1 on one connection, sent without a wait for the answers",
		Before: "not measured",
		Run:    func(a *Attacker) error { return a.flood(codeAndText{200, small}) },
	},
	{
		Name: "http1-leave", Path: overTCP, Full: 20_000, Short: 200,
		What:   "%s streams of HTTP/1.1, on connections of their own, that are closed at once or when their handlers run",
		Before: "not measured",
		Run:    leave,
	},
	{
		Name: "http1-reset", Path: overTCP, Full: 10_000, Short: 300,
		What:   "%s unary calls of gRPC-Web, on connections of their own, that are reset when their replies of 150 kB have begun",
		Before: "457 MB, of which 286 MB for ever",
		Run:    resetUnread,
	},
}

const (
	typeJSON = "application/json"
	typeWeb  = "application/grpc-web"
	chunked  = "Transfer-Encoding: chunked"
)

// post returns the head of a request.
func post(method, contentType string, fields ...string) string {
	lines := []string{"POST " + methods + method + " HTTP/1.1", "Host: localhost", "Content-Type: " + contentType}
	return strings.Join(append(append(lines, fields...), "", ""), "\r\n")
}

// posted returns a request with a body whose length is given.
func posted(method, contentType, body string, fields ...string) string {
	return post(method, contentType, append(fields, fmt.Sprintf("Content-Length: %d", len(body)))...) + body
}

// small is an ordinary call.
var small = posted("EmptyCall", typeJSON, "{}")

// inChunks returns body in chunks of n bytes at most, and the end of it.
func inChunks(body string, n int) string {
	var b strings.Builder
	for ; len(body) > 0; body = body[min(n, len(body)):] {
		part := body[:min(n, len(body))]
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(part), part)
	}
	return b.String() + "0\r\n\r\n"
}

// enterHTTP1 connects and sends the requests in turn. Each must be answered with the code
// in front of it: otherwise the server would seem to withstand what it only refuses. From
// then on the connection's answers are read and discarded.
func (a *Attacker) enterHTTP1(requests ...codeAndText) (*peer, error) {
	p, err := a.dial(overTCP)
	if err != nil {
		return nil, err
	}
	in := bufio.NewReader(p.conn)
	for _, r := range requests {
		if err := p.write([]byte(r.text)); err != nil {
			return nil, err
		}
		answer, err := http.ReadResponse(in, nil)
		if err != nil {
			return nil, err
		}
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			return nil, err
		}
		if answer.StatusCode != r.code {
			return nil, fmt.Errorf("%.100q is answered with %s, not %d: %.200q", r.text, answer.Status, r.code, body)
		}
	}
	p.drain()
	return p, nil
}

// A codeAndText is a request and the code of its answer.
type codeAndText struct {
	code int
	text string
}

// flood sends the requests in turn, a.Count in all, once each was answered as it should be.
func (a *Attacker) flood(requests ...codeAndText) error {
	p, err := a.enterHTTP1(requests...)
	if err != nil {
		return err
	}
	next := 0
	return p.repeat(a.Count, func(b []byte) []byte {
		next++
		return append(b, requests[next%len(requests)].text...)
	})
}

// scatter opens a.Count connections, and sends one of texts on each, in turn. Before that
// it makes a call, which must succeed.
func (a *Attacker) scatter(call string, texts ...string) error {
	if _, err := a.enterHTTP1(codeAndText{200, call}); err != nil {
		return err
	}
	for i := range a.Count {
		p, err := a.dial(overTCP)
		if err != nil {
			return err
		}
		p.drain()
		if err := p.write([]byte(texts[i%len(texts)])); err != nil {
			return err
		}
	}
	return nil
}

// tinyFields returns as many header fields as one request may have, with names that are
// all different and no values. Lines need not end with CR.
func tinyFields() string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789-_" // what metadata may consist of
	const most = 2_040                                        // of 2,048; the rest are fields that every request has
	var b strings.Builder
	for i := range most {
		n := len(alphabet)
		b.Write([]byte{alphabet[i%26], alphabet[i/26%n], alphabet[i/26/n%n], ':', '\n'})
	}
	return b.String()
}

// withFields adds tiny fields to a request.
func withFields(request string) string {
	line, rest, _ := strings.Cut(request, "\r\n")
	return line + "\r\n" + tinyFields() + rest
}

func fieldsHeld(a *Attacker) error {
	wait := withFields(post("HalfDuplexCall", typeWeb, chunked))
	return a.scatter(withFields(small), wait, strings.TrimSuffix(wait, "\r\n"))
}

// halves are headers that do not end.
var halves = []string{"POST " + methods, post("EmptyCall", typeJSON)[:100]}

// unfinished are calls whose bodies do not end. Those that wait for more than a time are
// refused, and so is a message of 4 GiB.
var unfinished = []string{
	post("UnaryCall", typeJSON, "Content-Length: 2"),
	post("UnaryCall", typeJSON, "Content-Length: 4000000"),
	post("UnaryCall", typeJSON, chunked) + "1\r\n{\r\n",
	post("UnaryCall", typeJSON, "Content-Length: 2", "Connect-Timeout-Ms: 5000"),
	post("FullDuplexCall", typeWeb, chunked) + "6\r\n\x00\x00\x3f\xff\xff\n\r\n",
	post("FullDuplexCall", typeWeb, chunked, "Grpc-Timeout: 5S") + "6\r\n\x00\x00\x3f\xff\xff\n\r\n",
	post("FullDuplexCall", typeWeb, chunked) + "6\r\n\x00\xff\xff\xff\xff\n\r\n",
	post("HalfDuplexCall", typeWeb, "Content-Length: 4000000") + "\x00",
}

// compressed returns a body in gzip.
func compressed(body string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, body)
	_ = w.Close()
	return b.String()
}

func gzipBombs(a *Attacker) error {
	bomb := func(mebibytes int) string {
		return posted("UnaryCall", typeJSON, compressed(strings.Repeat(" ", mebibytes<<20-2)+"{}"), "Content-Encoding: gzip")
	}
	return a.flood(codeAndText{200, bomb(4)}, codeAndText{429, bomb(8)})
}

func jsonBodies(a *Attacker) error {
	const most = 1 << 20
	empty := `{"responseParameters":[` + strings.Repeat("{},", most/3) + "{}]}"
	return a.flood(
		codeAndText{400, posted("UnaryCall", typeJSON, `{"x":`+strings.Repeat("[", most))},
		codeAndText{200, posted("UnaryCall", typeJSON, `{`+strings.Repeat(`"x":0,`, most/6)+`"x":0}`)},
		codeAndText{200, posted("FullDuplexCall", "application/connect+json", envelope(empty))},
		codeAndText{200, post("UnaryCall", typeJSON, chunked) + inChunks("{}"+strings.Repeat(" ", most/6), 1)},
	)
}

// envelope returns a message of a stream.
func envelope(message string) string {
	return string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))) + message
}

// leave opens streams and closes their connections: at once, or when the handler has
// answered a message and waits for the next.
func leave(a *Attacker) error {
	if _, err := a.enterHTTP1(codeAndText{200, small}); err != nil {
		return err
	}
	echo := post("FullDuplexCall", typeWeb, chunked) + "5\r\n\x00\x00\x00\x00\x00\r\n"
	wait := post("HalfDuplexCall", typeWeb, chunked)
	answer := make([]byte, 4096)
	for i := range a.Count {
		p, err := a.dial(overTCP)
		if err != nil {
			return err
		}
		text := echo
		if i%2 > 0 {
			text = wait
		}
		if err := p.write([]byte(text)); err != nil {
			return err
		}
		if i%2 == 0 {
			if _, err := p.conn.Read(answer); err != nil {
				return err
			}
		}
		_ = p.conn.Close()
	}
	return nil
}

// resetUnread makes calls and resets their connections, of which the server still has to write
// most of the reply: its system takes little of one for a client with small segments.
func resetUnread(a *Attacker) error {
	if _, err := a.enterHTTP1(codeAndText{200, small}); err != nil {
		return err
	}
	narrow := net.Dialer{Deadline: a.Until, Control: func(_, _ string, c syscall.RawConn) (err error) {
		inner := c.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, 536), unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<10))
		})
		return errors.Join(err, inner)
	}}
	call := posted("UnaryCall", typeWeb, envelope(string(responseOf(150_000))))
	begin := make([]byte, 100)
	for range a.Count {
		conn, err := narrow.Dial("tcp", strings.TrimPrefix(a.at[overTCP], "tcp:"))
		if err != nil {
			return err
		}
		_ = conn.SetDeadline(a.Until)
		p := &peer{conn: conn, sent: &a.Sent}
		if err := p.write([]byte(call)); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, begin); err != nil {
			return err
		}
		if err := errors.Join(conn.(*net.TCPConn).SetLinger(0), conn.Close()); err != nil {
			return err
		}
	}
	return nil
}
