package interop

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/nearpath"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/sniff"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

// TestTheListenerReadsContentTypesAsHPACKDoes: it finds the content type of a connection's first
// request without an HPACK decoder.
func TestTheListenerReadsContentTypesAsHPACKDoes(t *testing.T) {
	const end = "the end of what is sent"
	taken := make(chan bool)
	lis := bufconn.Listen(1 << 20)
	take := func(grpc bool) func(sniff.Handover) {
		return func(h sniff.Handover) {
			go func() {
				defer h.Conn.Close()
				read := string(h.First)
				for b := make([]byte, 4<<10); !strings.HasSuffix(read, end); {
					n, err := h.Conn.Read(b)
					if read += string(b[:n]); err != nil {
						return // the other one gets the connection
					}
				}
				taken <- grpc
			}()
		}
	}
	l := &sock.Listener{Listener: lis, Options: sock.Options{Options: nearpath.Options{Config: &options.NewServer(nil).Connections}}, HTTP2: take(false), GRPC: take(true)}
	ended := make(chan error)
	go func() { ended <- l.Sessions(func(link.Session) link.Acceptor { return nil }) }()
	values := []string{"application/grpc", "application/grpc+proto", "application/grpc+", "application/grpc;a=b", "application/grpc-web", "application/grp", "application/grpcx", "application/grpc ", "application/json", "", "APPLICATION/GRPC"}
	r := rand.New(rand.NewPCG(1, 2))
	kinds := make(map[string]int)
	for range 3000 {
		var block bytes.Buffer
		e := hpack.NewEncoder(&block)
		if r.IntN(4) == 0 {
			e.SetMaxDynamicTableSize(uint32(r.IntN(4096)))
		}
		fields := []hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "https"}, {Name: ":path", Value: "/a.B/C"}, {Name: ":authority", Value: "localhost:50051"}}
		for range r.IntN(6) {
			f := hpack.HeaderField{Name: fmt.Sprint("x-", r.IntN(3)), Value: strings.Repeat("é7", r.IntN(100)), Sensitive: r.IntN(2) == 0}
			fields = append(fields, f)
		}
		if r.IntN(8) > 0 {
			fields = append(fields, hpack.HeaderField{Name: "content-type", Value: values[r.IntN(len(values))], Sensitive: r.IntN(3) == 0})
		}
		for range r.IntN(3) {
			fields = append(fields, hpack.HeaderField{Name: "te", Value: "trailers"})
		}
		for _, f := range fields {
			if f.Name == "content-type" && r.IntN(2) == 0 { // as no encoder of Go writes it
				literal(&block, r, f)
			} else if err := e.WriteField(f); err != nil {
				t.Fatal(err)
			}
		}
		decoded, err := hpack.NewDecoder(4096, nil).DecodeFull(block.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		want := false
		for _, f := range decoded {
			if f.Name == "content-type" {
				rest, ok := strings.CutPrefix(f.Value, "application/grpc")
				want = ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
			}
		}
		conn, err := lis.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		b = append(b, 0, byte(block.Len()>>8), byte(block.Len()), 1, 4, 0, 0, 0, 1)
		if _, err := conn.Write(append(append(b, block.Bytes()...), end...)); err != nil {
			t.Fatal(err)
		}
		if got := <-taken; got != want {
			t.Errorf("grpc-go gets the connection: %t, want %t: %q", got, want, decoded)
		}
		kinds[fmt.Sprint(want)]++
		_ = conn.Close()
	}
	if kinds["true"] < 500 || kinds["false"] < 500 {
		t.Error(kinds)
	}
	_ = l.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// literal writes f as a literal whose name is one of the static table or in full, with and without
// Huffman's code.
func literal(b *bytes.Buffer, r *rand.Rand, f hpack.HeaderField) {
	text := func(s string) {
		prefix, out := byte(0), []byte(s)
		if r.IntN(2) == 0 {
			prefix, out = 0x80, hpack.AppendHuffmanString(nil, s)
		}
		if len(out) < 127 {
			b.WriteByte(prefix | byte(len(out)))
		} else {
			b.WriteByte(prefix | 127)
			b.Write(binary.AppendUvarint(nil, uint64(len(out)-127)))
		}
		b.Write(out)
	}
	kind := []byte{0x40, 0x10, 0}[r.IntN(3)]
	switch {
	case r.IntN(2) == 0:
		b.WriteByte(kind)
		text(f.Name)
	case kind == 0x40:
		b.WriteByte(kind | 31)
	default:
		b.Write([]byte{kind | 15, 16})
	}
	text(f.Value)
}
