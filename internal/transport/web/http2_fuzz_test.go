package web_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"testing"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
)

// FuzzHTTP2 sends frames to a server, with any settings and in any order, and reads what it answers.
// Each connection ends, and the server goes on. (With -race it looks for races in net/http.)
func FuzzHTTP2(f *testing.F) {
	for _, s := range []string{
		"j1s0s9j3s0s9g5s0s9j7s0s9", "h1c1c1c1c1c1c1c1c1c1C1", "p1p2p3j1p1", "j1w0w1w2w3j3W1W2", "m0j1M1j3m9m0M1j5", "iiiiiiii", "iIjIiIjI", "j1r1g3r3u5r5j7r7j9r9",
		"u1d1d1d1t1j3", "u1b1D1", "h1C1x1", "l1j3L5", "u1u3u5D5D3D1", "g1G3j5", "a0j1a1j3", "k1z0k2", "j1j1j0u2D9", "e1E3j5", "qj1q", "n0n1n2n3",
	} {
		f.Add([]byte(s))
	}
	lis := bufconn.Listen(64 << 10)
	srv := nearcall.NewServer(nearcall.MaxConcurrentStreams(8), nearcall.MaxRecvMsgSize(1<<16), nearcall.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Millisecond}))
	testpb.RegisterTestServiceServer(srv, &service{})
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(lis) }()
	f.Cleanup(func() {
		srv.Stop()
		if err := <-ended; err != nil {
			f.Error(err)
		}
	})
	f.Fuzz(func(t *testing.T, script []byte) {
		conn, err := lis.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		stuck := time.AfterFunc(2*time.Minute, func() {
			t.Error("the server is stuck")
			_ = conn.Close()
		})
		defer stuck.Stop()
		over := make(chan struct{})
		go func() { // closes the connection when the server ends it, or has handled all frames
			defer close(over)
			defer conn.Close()
			in := bufio.NewReader(conn)
			for {
				var head [9]byte
				if _, err := io.ReadFull(in, head[:]); err != nil {
					return
				}
				payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
				if _, err := io.ReadFull(in, payload); err != nil || head[3] == 7 {
					return
				}
				if head[3] == 6 && head[4] == 1 && string(payload) == theLast {
					return
				}
			}
		}()
		// The first request decides who serves the connection.
		var b bytes.Buffer
		b.WriteString(preface + settings + frame(1, 4, 1, block("application/json")) + frame(0, 1, 1, "{}"))
		for i := 0; i+1 < len(script) && i < 400; i += 2 {
			b.WriteString(step(script[i], script[i+1]))
		}
		b.WriteString(frame(6, 0, 0, theLast))
		b.Write(make([]byte, 32<<10)) // ends a frame that has not ended, and is wrong after one that has
		_, _ = conn.Write(b.Bytes())
		<-over
	})
}

const theLast = "the last"

// extremes are values of WINDOW_UPDATE and SETTINGS.
var extremes = []uint32{0, 1, 4096, 65535, 65536, 1<<24 - 1, 1<<31 - 1, 1 << 31, 1<<32 - 1, 100}

// step returns what a step of a script sends. Many are wrong.
func step(op, arg byte) string {
	stream := uint32(arg&31) + 2
	value := string(binary.BigEndian.AppendUint32(nil, extremes[int(arg)%len(extremes)]))
	set := func(id byte) string { return frame(4, 0, 0, string([]byte{0, id})+value) }
	field := func(name, value string) string {
		text := func(s string) string {
			if n := len(s); n >= 127 {
				return "\x7f" + string(binary.AppendUvarint(nil, uint64(n-127))) + s
			}
			return string([]byte{byte(len(s))}) + s
		}
		return "\x00" + text(name) + text(value)
	}
	const ops = "jgGueEhcClLdDbtrwWsmMnkaiIpxzq"
	if op < '0' || op > 'z' { // what the fuzzer likes to insert
		op = ops[int(op)%len(ops)]
	}
	switch op {
	case 'j': // a whole call of JSON
		return frame(1, 4, stream, block("application/json")) + frame(0, 1, stream, "{}")
	case 'g': // of gRPC-Web
		return frame(1, 4, stream, block("application/grpc-web")) + frame(0, 1, stream, wrap(0, ""))
	case 'G': // of gRPC
		return frame(1, 4, stream, block("application/grpc")) + frame(0, 1, stream, wrap(0, ""))
	case 'u': // begins an upload
		return frame(1, 4, stream, upload("application/connect+proto"))
	case 'e': // a request without a body
		return frame(1, 5, stream, block("application/json"))
	case 'E': // a path that is no method
		return frame(1, 5, stream, "\x82\x86\x84\x01\x01a")
	case 'h': // a header that goes on
		return frame(1, 0, stream, block("application/json"))
	case 'c':
		return frame(9, 0, stream, field("a", strings.Repeat("b", int(arg)*64)))
	case 'C':
		return frame(9, 4, stream, field("c", "d"))
	case 'l': // a header that is too large
		return frame(1, 4, stream, block("application/json")+field("a", strings.Repeat("b", 16000)))
	case 'L': // fields that HTTP/2 forbids
		return frame(1, 5, stream, block("application/json")+field("connection", "close")+field("Upper", "x")+field(":status", "200"))
	case 'd':
		return frame(0, 0, stream, wrap(0, "abc"))
	case 'D':
		return frame(0, 1, stream, "")
	case 'b': // a message that lies about its size
		return frame(0, 0, stream, "\x00\xff\xff\xff\xff")
	case 't': // trailers
		return frame(1, 5, stream, field("a", "b"))
	case 'r':
		return frame(3, 0, stream, "\x00\x00\x00\x08")
	case 'w':
		return frame(8, 0, 0, value)
	case 'W':
		return frame(8, 0, stream, value)
	case 's': // the table
		return set(1)
	case 'm': // the window of a stream
		return set(4)
	case 'M': // the size of frames
		return set(5)
	case 'n': // the size of header lists
		return set(6)
	case 'k': // any setting
		return set(arg)
	case 'a': // an acknowledgement
		return frame(4, 1, 0, "")
	case 'i':
		return frame(6, 0, 0, "12345678")
	case 'I':
		return frame(6, arg&1, stream*uint32(arg>>7), "12345678"[:arg%9])
	case 'p':
		return frame(2, 0, stream, string(binary.BigEndian.AppendUint32(nil, uint32(arg)))+"\x10")
	case 'x': // a promise
		return frame(5, 4, stream, "\x00\x00\x00\x02")
	case 'z': // GOAWAY
		return frame(7, 0, 0, value+"\x00\x00\x00\x00")
	case 'q': // an unknown frame
		return frame(0xfa, arg, stream, "x")
	}
	return string([]byte{op, arg}) // what follows is no frame, or another one
}
