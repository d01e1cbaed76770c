package promises

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	pb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

// logLine: the server logs a line for a connection that it refuses, or whose handshake fails.
func logLine(t *testing.T, f *face) {
	at := *f
	at.target = cmp.Or(f.refuse.target, f.target)
	w := at.start(t, new(service), f.refuse.options...)
	want := f.refuse.attempt(w)
	leak.Eventually(t, fmt.Sprintf("the log has %q", want), func() bool { return len(logs.with(want)) > 0 })
	for _, line := range logs.with(want) {
		if !strings.HasPrefix(line, "[nearcall] refused ") && !strings.HasPrefix(line, "[nearcall] the security handshake with ") {
			t.Errorf("the line is %q", line)
		}
	}
}

// A refusal is a connection that a server of a face does not take.
type refusal struct {
	target  string                     // what that server listens on; empty for the face's
	options []nearcall.ServerOption    // of that server
	attempt func(*world) (line string) // connects, and returns what the line contains
}

// send sends text over a new connection, and waits for its end.
func send(w *world, text string) net.Conn {
	conn := dialSocket(w)
	if _, err := io.WriteString(conn, text); err != nil {
		w.Fatal(err)
	}
	_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	_, _ = io.Copy(io.Discard, conn)
	return conn
}

// refused returns how the line about a client begins.
func (w *world) refused(conn net.Conn) string {
	if w.addr.Network() == "unix" {
		return fmt.Sprintf("refused process %d of user %d at %s: ", os.Getpid(), os.Getuid(), w.addr)
	}
	return fmt.Sprintf("refused %s: ", conn.LocalAddr())
}

var (
	garbage = refusal{attempt: func(w *world) string { return w.refused(send(w, "\x00 garbage")) }}
	noShm   = refusal{attempt: func(w *world) string {
		return w.refused(send(w, "nearcall/1\n")) + "the listener takes shared memory only"
	}}
	noTLS = refusal{attempt: func(w *world) string {
		return fmt.Sprintf("the security handshake with %s failed: ", send(w, "GET / HTTP/1.1\r\n").LocalAddr())
	}}

	// A client that does not trust the server's certificate. Only over QUIC the server's line
	// has this text.
	noTrust = refusal{attempt: func(w *world) string {
		const want = `failed: "CRYPTO_ERROR`
		c := dial(nearcall.WithTransportCredentials(nearcall.NewTLS(&tls.Config{RootCAs: x509.NewCertPool()})))(w, new(line))
		for range 5 { // on a busy machine the handshake may take too long for its end to be seen
			if _, err := c.unary(w.Context(), new(pb.SimpleRequest)); err == nil {
				w.Error("a client that does not trust the server has made a call")
			}
			if len(logs.with(want)) > 0 {
				break
			}
		}
		_ = c.close()
		return want
	}}

	// The face's own client, which the server does not take.
	noOthers = refusal{options: []nearcall.ServerOption{nearcall.OtherClients(0)}, attempt: func(w *world) string {
		c, l := w.client()
		if _, err := c.unary(w.Context(), new(pb.SimpleRequest)); err == nil {
			w.Error("a call has succeeded")
		}
		return w.refused(l.conns[0])
	}}
)
