package websocket

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nearcall/nearcall/internal/wire"
)

var update = flag.Bool("update", false, "write the vectors anew")

// The vectors of WebSocket, for other implementations.
type vectors struct {
	Request  []string `json:"request"` // lines of HTTP
	Response []string `json:"response"`
	Frames   []vector `json:"frames"`
}

// A vector is what one side sends after the request and its response.
type vector struct {
	About   string   `json:"about"`
	From    string   `json:"from"` // client or server
	Hex     []string `json:"hex"`  // of each frame of WebSocket
	Payload string   `json:"payload"`
	Answers []answer `json:"answers"`
}

// An answer is a frame that the receiver sends.
type answer struct {
	Kind    string `json:"kind"` // pong or close
	Code    int    `json:"code,omitempty"`
	Payload string `json:"payload,omitempty"` // of pong
}

func TestVectorsOfWebSocket(t *testing.T) {
	hello := wire.AppendHello([]byte(wire.Magic), &wire.Hello{Version: 1, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock})
	ping := wire.AppendPing(nil, wire.KindPing, [8]byte{1, 2, 3, 4, 5, 6, 7, 8})
	bye := wire.AppendBye(nil, wire.ByeDone, "")
	const final = flagFinal | byte(opBinary)
	var got vectors
	got.Request, got.Response = handshake(t)
	for _, side := range []struct {
		from   string
		client bool
	}{{"client", true}, {"server", false}} {
		f := func(first byte, payload []byte) []byte { return frame(side.client, first, payload) }
		add := func(about string, frames ...[]byte) {
			got.Frames = append(got.Frames, exchange(t, vector{About: about, From: side.from}, side.client, frames))
		}
		add("The line, HELLO and a PING of nearcall's protocol in one message.", f(final, append(hello[:len(hello):len(hello)], ping...)))
		add("The same in four messages: the first ends within the line, the second is empty, and the third ends within HELLO.",
			f(final, hello[:5]), f(final, nil), f(final, hello[5:20]), f(final, append(hello[20:len(hello):len(hello)], ping...)))
		add("A message in fragments, with a PING of WebSocket between them.",
			f(byte(opBinary), hello[:5]), f(flagFinal|byte(opPing), []byte("alive")), f(flagFinal|byte(opContinuation), hello[5:]))
		add("BYE, and a Close frame with the code 1000.", f(final, append(hello[:len(hello):len(hello)], bye...)), f(flagFinal|byte(opClose), []byte{3, 0xe8}))
		add("A page that goes away: a Close frame without BYE. The connection is lost.", f(final, hello), f(flagFinal|byte(opClose), []byte{3, 0xe9}))
		add("A Close frame without a code.", f(flagFinal|byte(opClose), nil))
		add("A text message.", f(flagFinal|byte(opText), hello))
		add("A bit that an extension would have negotiated.", f(final|0x40, hello))
		add("A PING of 126 bytes.", f(flagFinal|byte(opPing), make([]byte, 126)))
		add("A continuation of nothing.", f(flagFinal|byte(opContinuation), hello))
		add("A message in the middle of another.", f(byte(opBinary), hello), f(final, ping))
	}
	got.Frames = append(got.Frames,
		exchange(t, vector{About: "A client that does not mask its frames.", From: "client"}, true, [][]byte{frame(false, final, hello)}),
		exchange(t, vector{About: "A server that masks its frames.", From: "server"}, false, [][]byte{frame(true, final, hello)}))

	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(got); err != nil {
		t.Fatal(err)
	}
	const file = "../../wire/testdata/websocket.json"
	if *update {
		if err := os.WriteFile(file, out.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || !bytes.Equal(out.Bytes(), want) {
		t.Errorf("%v; %s differs, say go test -update if that is meant. Now:\n%s", err, file, out.Bytes())
	}
}

// handshake returns a request for WebSocket and its response.
func handshake(t *testing.T) (request, response []string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, "http://shop.example/calls", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
		"Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}, "Sec-Websocket-Protocol": {"other, " + Subprotocol}}
	if code, why := Check(r, http.Header{}); code != 0 {
		t.Fatal(code, why)
	}
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	lines := func(s string) []string { return strings.Split(strings.TrimSpace(s), "\r\n") }
	request = lines(b.String())
	client, server := net.Pipe()
	defer client.Close()
	go func() {
		if conn, err := Accept(r, server, nil, nil); err == nil {
			_ = conn.Close()
		}
	}()
	said, err := io.ReadAll(client)
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(said), "\r\n\r\n")
	return request, lines(head)
}

// exchange passes frames to a WebSocket, and returns v with them, what is read of them, and
// the answers to them until the receiver closes.
func exchange(t *testing.T, v vector, fromClient bool, frames [][]byte) vector {
	t.Helper()
	for _, f := range frames {
		v.Hex = append(v.Hex, hex.EncodeToString(f))
	}
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		conn := newConn(b, nil, !fromClient, nil)
		var sent []byte
		heard := make(chan struct{})
		go func() {
			defer close(heard)
			sent, _ = io.ReadAll(a)
		}()
		go func() { _, _ = a.Write(bytes.Join(frames, nil)) }()
		var payload []byte
		var failed error
		go func() {
			buf := make([]byte, 1000)
			for failed == nil {
				var n int
				n, failed = conn.Read(buf)
				payload = append(payload, buf[:n]...)
			}
		}()
		synctest.Wait()
		v.Payload = hex.EncodeToString(payload)
		closes := failed != nil // if not, the Close frame is the answer to this test's Close
		_ = conn.Close()
		<-heard
		_ = a.Close()
		synctest.Wait()
		v.Answers = answers(t, sent, closes)
	})
	return v
}

// answers takes the frames in b apart.
func answers(t *testing.T, b []byte, closes bool) (all []answer) {
	t.Helper()
	for len(b) > 0 {
		n := int(b[1] &^ flagMasked)
		head := 2
		payload := bytes.Clone(b[head : head+n])
		if b[1]&flagMasked != 0 {
			payload = bytes.Clone(b[head+4 : head+4+n])
			for i := range payload {
				payload[i] ^= b[head+i%4]
			}
			head += 4
		}
		switch opcode(b[0] & 0xf) {
		case opPong:
			all = append(all, answer{Kind: "pong", Payload: hex.EncodeToString(payload)})
		case opClose:
			a := answer{Kind: "close"}
			if n >= 2 {
				a.Code = int(binary.BigEndian.Uint16(payload))
			}
			if closes {
				all = append(all, a)
			}
		default:
			t.Fatalf("an answer %x", b)
		}
		b = b[head+n:]
	}
	return all
}
