package sock

import (
	"net"
	"testing"

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

// Foreign can take a connection, together with what was read from it.
func TestForeignConnectionsMayBeTaken(t *testing.T) {
	inner := bufconn.Listen(1 << 10)
	taken := make(chan string, 1)
	lis := &Listener{Listener: inner, Foreign: func(first []byte, conn net.Conn) bool {
		_, _ = conn.Write([]byte("mine"))
		_ = conn.Close()
		taken <- string(first)
		return true
	}}
	ended := make(chan error)
	go func() { ended <- lis.Sessions(func(link.Session) link.Acceptor { return nil }) }()
	conn, err := inner.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("GET / ")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 4)
	if _, err := conn.Read(answer); err != nil || string(answer) != "mine" {
		t.Errorf("%q, %v", answer, err)
	}
	if first := <-taken; first != "GET / " {
		t.Errorf("Foreign was shown %q", first)
	}
	_ = lis.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
