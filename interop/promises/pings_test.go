package promises

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/targets"
	"github.com/nearcall/nearcall/internal/transport/websocket"
	"github.com/nearcall/nearcall/internal/wire"
)

// keepaliveEnforcement: a client that sends too many PINGs is disconnected, with the reason. One that
// the policy allows is not.
func keepaliveEnforcement(t *testing.T, f *face) {
	const many = 10
	lenient := nearcall.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Nanosecond, PermitWithoutStream: true})
	p := f.pings(f.start(t, new(service), lenient))
	for range many {
		if err := p.ping(); err != nil {
			t.Fatalf("a PING that the policy allows: %v", err)
		}
	}
	p = f.pings(f.start(t, new(service)))
	for range many {
		if err := p.ping(); err != nil {
			if !strings.Contains(strings.ReplaceAll(err.Error(), "_", " "), "too many pings") {
				t.Errorf("the connection ends with %v", err)
			}
			return
		}
	}
	t.Errorf("the server takes %d PINGs", many)
}

// A pinger is a client that sends a PING and waits for its answer. The error is the reason with which
// the server ends the connection.
type pinger interface{ ping() error }

// ownPings returns a function that sends PINGs of nearcall's protocol over a connection of open.
func ownPings(open func(*world) io.ReadWriter) func(*world) pinger {
	return func(w *world) pinger {
		p := &ownPinger{conn: open(w)}
		hello := wire.Hello{Version: wire.Version, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock}
		if _, err := p.conn.Write(wire.AppendHello([]byte(wire.Magic), &hello)); err != nil {
			w.Fatal(err)
		}
		if _, err := p.hello(); err != nil {
			w.Fatal(err)
		}
		return p
	}
}

type ownPinger struct {
	conn io.ReadWriter
	in   []byte
}

// hello reads the server's line and its HELLO.
func (p *ownPinger) hello() (h wire.Hello, err error) {
	for len(p.in) < len(wire.Magic) && err == nil {
		err = p.read()
	}
	if !bytes.HasPrefix(p.in, []byte(wire.Magic)) {
		return h, fmt.Errorf("the server says %q, %w", p.in, err)
	}
	p.in = p.in[len(wire.Magic):]
	f, err := p.next()
	if err != nil {
		return h, err
	}
	return wire.ParseHello(f.Body)
}

func (p *ownPinger) read() error {
	b := make([]byte, 4<<10)
	n, err := p.conn.Read(b)
	p.in = append(p.in, b[:n]...)
	if n > 0 {
		return nil
	}
	return err
}

// next returns the next frame.
func (p *ownPinger) next() (wire.Frame, error) {
	for {
		f, n, err := wire.Next(p.in)
		if err == nil && n == 0 {
			if err = p.read(); err == nil {
				continue
			}
		}
		p.in = p.in[n:]
		return f, err
	}
}

func (p *ownPinger) ping() error {
	if _, err := p.conn.Write(wire.AppendPing(nil, wire.KindPing, [8]byte{1})); err != nil {
		return err
	}
	for {
		f, err := p.next()
		switch {
		case err != nil:
			return err
		case f.Kind == wire.KindPong:
			return nil
		case f.Kind == wire.KindBye:
			_, text, err := wire.ParseBye(f.Body)
			return errors.Join(errors.New(text), err)
		}
	}
}

// http2Pings returns a function that makes a call of a content type, and then sends PINGs of HTTP/2.
func http2Pings(open func(*world) io.ReadWriter, contentType string) func(*world) pinger {
	return func(w *world) pinger {
		conn := open(w)
		p := http2Pinger{http2.NewFramer(conn, bufio.NewReader(conn))}
		var block bytes.Buffer
		e := hpack.NewEncoder(&block)
		for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", pb.TestService_UnaryCall_FullMethodName}, {":authority", "localhost"}, {"content-type", contentType}, {"te", "trailers"}} {
			_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
		}
		body := map[string]string{"application/json": "{}", "application/proto": ""}
		message, bare := body[contentType]
		if !bare {
			message = "\x00\x00\x00\x00\x00"
		}
		_, err := io.WriteString(conn, http2.ClientPreface)
		err = errors.Join(err, p.WriteSettings(), p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}), p.WriteData(1, true, []byte(message)))
		if err != nil {
			w.Fatal(err)
		}
		for {
			f, err := p.ReadFrame()
			if err != nil {
				w.Fatal(err)
			}
			if s, ok := f.(*http2.SettingsFrame); ok && !s.IsAck() {
				if err := p.WriteSettingsAck(); err != nil {
					w.Fatal(err)
				}
			}
			if h := f.Header(); h.StreamID == 1 && h.Flags.Has(http2.FlagDataEndStream) {
				return p
			}
		}
	}
}

type http2Pinger struct{ *http2.Framer }

func (p http2Pinger) ping() error {
	if err := p.WritePing(false, [8]byte{1}); err != nil {
		return err
	}
	for {
		switch f, err := p.ReadFrame(); f := f.(type) {
		case *http2.PingFrame:
			if f.IsAck() {
				return nil
			}
			if err := p.WritePing(true, f.Data); err != nil {
				return err
			}
		case *http2.GoAwayFrame:
			return fmt.Errorf("%v: %s", f.ErrCode, f.DebugData())
		case nil:
			return err
		}
	}
}

// limited closes a connection at the end of the test, and gives up what it waits for in time.
func limited(w *world, conn net.Conn, err error) net.Conn {
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn
}

func openSocket(w *world) io.ReadWriter { return dialSocket(w) }

func dialSocket(w *world) net.Conn {
	conn, err := net.Dial(w.addr.Network(), w.addr.String())
	return limited(w, conn, err)
}

func openTLS(protocols ...string) func(*world) io.ReadWriter {
	return func(w *world) io.ReadWriter {
		config := clientTLS.Clone()
		config.NextProtos = protocols
		conn, err := tls.Dial("tcp", w.addr.String(), config)
		return limited(w, conn, err)
	}
}

func openWebSocket(w *world) io.ReadWriter {
	conn := net.Conn(nil)
	if w.auth == "tls" {
		conn = openTLS("http/1.1")(w).(net.Conn)
	} else {
		conn = dialSocket(w)
	}
	over, err := websocket.Dial(w.Context(), conn, nil, &url.URL{Scheme: "http", Host: w.addr.String(), Path: "/"})
	return limited(w, over, err)
}

func openShm(w *world) io.ReadWriter { return offer(w, dialSocket(w)) }

// offer upgrades a connection to shared memory.
func offer(w *world, conn net.Conn) io.ReadWriter {
	over, _, err := targets.SharedMemory(&options.NewClient(nil).Connections, false).Offer(conn.(*net.UnixConn))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = over.Close() })
	return over
}

// openNear moves to shared memory from TCP, by docs/protocol.md.
func openNear(w *world) io.ReadWriter {
	conn := dialSocket(w)
	p := &ownPinger{conn: conn}
	hello := wire.Hello{Version: wire.Version, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock, Features: wire.FeatureNear}
	if _, err := conn.Write(wire.AppendHello([]byte(wire.Magic), &hello)); err != nil {
		w.Fatal(err)
	}
	h, err := p.hello()
	const nonce = 16
	if err != nil || len(h.Near) < nonce {
		w.Fatalf("the server offers %q, %v", h.Near, err)
	}
	line := []byte("nearcall/1 near\n" + h.Near[:nonce])
	for _, a := range []net.Addr{conn.LocalAddr(), conn.RemoteAddr()} {
		at := a.(*net.TCPAddr)
		line = binary.BigEndian.AppendUint16(append(line, at.IP.To16()...), uint16(at.Port))
	}
	u, err := net.Dial("unix", "@"+h.Near[nonce:])
	u = limited(w, u, err)
	if _, err := u.Write(line); err != nil {
		w.Fatal(err)
	}
	return offer(w, u)
}
