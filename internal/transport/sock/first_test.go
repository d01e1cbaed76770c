package sock

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall/internal/link"
)

func TestProtocolsAreToldByTheirFirstBytes(t *testing.T) {
	for first, want := range map[string]protocol{
		"":                                  undecided,
		"nearcall/1":                        undecided,
		"nearcall/1\n":                      native,
		"nearcall/1\n\x05\x00":              native,
		"nearcall/2\n":                      unknown,
		"near":                              undecided,
		"nearby":                            unknown,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r":    undecided,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":  http2,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nx": http2,
		"PRI * HTTP/1.1":                    http1,
		"P":                                 undecided,
		"POST /":                            http1,
		"GET":                               undecided,
		"GET ":                              http1,
		"GETTING?":                          unknown,
		" GET":                              unknown,
		"AVERYLONGMETHODINDEEDX":            unknown,
		"\x16":                              undecided,
		"\x16\x03":                          clientHello,
		"\x16\x04":                          unknown,
		"\x00":                              unknown,
	} {
		if got := protocolOf([]byte(first), ""); got != want {
			t.Errorf("%q: %d, want %d", first, got, want)
		}
	}
}

// Another server can take a connection of an ordinary gRPC client, together with what was
// read from it.
func TestConnectionsOfGRPCClientsMayBeTaken(t *testing.T) {
	inner := bufconn.Listen(1 << 10)
	taken := make(chan string, 1)
	lis := &Listener{Listener: inner, GRPC: func(h Handover) {
		_, _ = h.Conn.Write([]byte("mine"))
		_ = h.Conn.Close()
		taken <- string(h.First)
	}}
	ended := make(chan error)
	go func() { ended <- lis.Sessions(func(link.Session) link.Acceptor { return nil }) }()
	conn, err := inner.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(preface + "more")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 4)
	if _, err := conn.Read(answer); err != nil || string(answer) != "mine" {
		t.Errorf("%q, %v", answer, err)
	}
	if first := <-taken; !strings.HasPrefix(first, preface) {
		t.Errorf("GRPC was shown %q", first)
	}
	_ = lis.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// HTTP1 can take a connection, together with what was read from it. It gets none of a
// listener that requires the upgrade.
func TestConnectionsOfHTTP1CanBeTaken(t *testing.T) {
	for _, requires := range []bool{false, true} {
		inner := bufconn.Listen(1 << 10)
		taken := make(chan string, 1)
		lis := &Listener{Listener: inner, Options: Options{RequireUpgrade: requires}, HTTP1: func(h Handover) {
			if h.Deadline.IsZero() || h.Auth == nil || h.Accept == nil {
				t.Errorf("%+v is incomplete", h)
			}
			_, _ = h.Conn.Write([]byte("mine"))
			_ = h.Conn.Close()
			taken <- string(h.First)
		}}
		ended := make(chan error)
		go func() { ended <- lis.Sessions(func(link.Session) link.Acceptor { return nil }) }()
		conn, err := inner.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte("GET / ")); err != nil {
			t.Fatal(err)
		}
		want, first := "mine", "GET / "
		if requires {
			want, first = "HTTP", ""
		}
		answer := make([]byte, 4)
		if _, err := conn.Read(answer); err != nil || string(answer) != want {
			t.Errorf("%q, %v; want %q", answer, err, want)
		}
		_ = conn.Close()
		if first != "" {
			if got := <-taken; got != first {
				t.Errorf("HTTP1 was shown %q", got)
			}
		}
		_ = lis.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// Close does not wait until the peer has read the refusal of a connection that nobody takes.
func TestConnectionsThatAreNotTakenEndWithTheListener(t *testing.T) {
	for _, first := range []string{preface, "GET / "} {
		synctest.Test(t, func(t *testing.T) {
			inner := bufconn.Listen(1 << 10)
			lis := &Listener{Listener: inner}
			ended := make(chan error)
			go func() { ended <- lis.Sessions(func(link.Session) link.Acceptor { return nil }) }()
			conn, err := inner.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write([]byte(first)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			began := time.Now()
			_ = lis.Close()
			if err := <-ended; err != nil || time.Since(began) > 0 {
				t.Errorf("%q: it takes %v, with the error %v", first, time.Since(began), err)
			}
		})
	}
}
