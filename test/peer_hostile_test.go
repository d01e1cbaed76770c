package test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// Package internal/mux tests each violation of the protocol. These tests show the
// effect on a server with real sockets and on its other clients.

// A stranger is a peer that writes its frames itself.
type stranger struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
	enc  wire.Encoder
	next uint64 // ID of its next call
}

// meet connects to lis without writing anything.
func meet(t *testing.T, lis net.Listener) *stranger {
	t.Helper()
	conn, err := net.Dial(lis.Addr().Network(), lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return &stranger{t: t, conn: conn, in: bufio.NewReader(conn), next: 1}
}

// greeting returns the client's first bytes, which grant window to each call and to the
// connection.
func greeting(window int64) []byte {
	return wire.AppendHello([]byte(wire.Magic), &wire.Hello{Version: 1, Stream: window, Connection: window, Block: wire.MinBlock})
}

// answer reads a client's question, which protocol the server speaks, and answers it.
func (s *stranger) answer() {
	_, _ = io.CopyN(io.Discard, s.in, int64(len(wire.Question)))
	s.write([]byte(wire.Answer))
}

// write ignores errors, because the server might not read everything.
func (s *stranger) write(b ...[]byte) { _, _ = s.conn.Write(slices.Concat(b...)) }

// call returns the frames that open a call, and its ID.
func (s *stranger) call(method string, message []byte, timeout time.Duration, md metadata.MD) ([]byte, uint64) {
	id := s.next
	s.next += 2
	step := &wire.Step{
		Stream: id, Timeout: timeout, Message: message, HasMessage: message != nil,
		Open: &link.CallHeader{Method: "/grpc.testing.TestService/" + method, Profile: &link.Profile{Authority: "localhost"}, Metadata: md},
	}
	b, _ := s.enc.Append(nil, step, 1<<20)
	return b, id
}

// frames calls f for each frame until f returns true or the connection ends. In the
// latter case it returns the reason.
func (s *stranger) frames(f func(wire.Frame) (enough bool)) error {
	line := make([]byte, len(wire.Magic))
	if _, err := io.ReadFull(s.in, line); err != nil {
		return err
	}
	if string(line) != wire.Magic {
		return fmt.Errorf("it begins with %q", line)
	}
	for {
		length := make([]byte, 2)
		if _, err := io.ReadFull(s.in, length); err != nil {
			return err
		}
		b := append(length, make([]byte, binary.LittleEndian.Uint16(length))...)
		if _, err := io.ReadFull(s.in, b[2:]); err != nil {
			return err
		}
		frame, _, err := wire.Next(b)
		if err != nil {
			return err
		}
		if f(frame) {
			return nil
		}
	}
}

// farewell reads until the connection ends, and returns the contents of the BYE.
func (s *stranger) farewell() (code wire.ByeCode, text string) {
	s.t.Helper()
	code = 99
	err := s.frames(func(f wire.Frame) bool {
		if f.Kind == wire.KindBye {
			code, text, _ = wire.ParseBye(f.Body)
		}
		return false
	})
	if err != io.EOF && !errors.Is(err, io.ErrUnexpectedEOF) {
		s.t.Errorf("the connection ends with %v", err)
	}
	return code, text
}

// goesOn checks that a server still serves well-behaved clients.
func goesOn(t *testing.T, lis nearcall.Listener) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	client := dial(t, lis.Target())
	wantCode(t, <-invoke(ctx, client), codes.OK)
	s, err := client.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{Payload: payload(1000)})
	n := 0
	for ; err == nil; n++ {
		_, err = s.Recv()
	}
	if n != 101 || err != io.EOF {
		t.Errorf("of 100 replies %d came, and %v", n-1, err)
	}
}

// good starts a client that makes calls until stop is called. None of them must fail.
func good(t *testing.T, lis nearcall.Listener) (stop func()) {
	t.Helper()
	client := dial(t, lis.Target())
	over := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for { // at least one call, on a busy machine as well
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			wantCode(t, <-invoke(ctx, client), codes.OK)
			cancel()
			select {
			case <-over:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	return func() {
		close(over)
		all.Wait()
	}
}

// listenFor serves e over network, to any nearcall client. For "unix" it disables the
// upgrade.
func listenFor(t *testing.T, network string, e echo, opts ...nearcall.ServerOption) nearcall.Listener {
	t.Helper()
	if network == "unix" {
		opts = append(opts, nearcall.DisableSharedMemory())
	}
	lis := listen(t, targetFor(t, network))
	start(t, serve(t, e, opts...), lis)
	return lis
}

func TestRandomBytesHarmNobody(t *testing.T) {
	hold(t)
	lis := listenFor(t, "tcp", echo{})
	defer good(t, lis)()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	connections := 1000
	if testing.Short() {
		connections = 100
	}
	var next atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for {
				i := int(next.Add(1))
				if i > connections {
					return
				}
				r := rand.New(rand.NewPCG(seed, uint64(i)))
				junk := make([]byte, 1+r.IntN(4000))
				for k := range junk {
					junk[k] = byte(r.Uint32())
				}
				switch i % 4 {
				case 1: // begin like a nearcall client
					junk = append([]byte(wire.Magic), junk...)
				case 2: // and continue with a valid hello
					junk = append(greeting(wire.MinWindow), junk...)
				case 3: // and with valid frame lengths
					b := greeting(wire.MinWindow)
					for len(junk) > 2 {
						n := min(2+r.IntN(60), len(junk))
						b = append(append(b, byte(n), 0), junk[:n]...)
						junk = junk[n:]
					}
					junk = b
				}
				conn, err := net.Dial("tcp", lis.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				_ = conn.SetDeadline(time.Now().Add(time.Minute))
				_, _ = conn.Write(junk)
				_ = conn.(*net.TCPConn).CloseWrite()
				answer, err := io.ReadAll(conn)
				var timeout net.Error
				if errors.As(err, &timeout) && timeout.Timeout() {
					t.Errorf("after %.50q and %d bytes more the connection goes on", junk, len(junk))
				}
				// A client that leaves in the middle of a frame might not get an
				// answer.
				if i%4 != 0 && err == nil && len(answer) > 0 && !bytes.HasPrefix(answer, []byte(wire.Magic)) {
					t.Errorf("the answer is %.50q", answer)
				}
				_ = conn.Close()
			}
		})
	}
	all.Wait()
	goesOn(t, lis)
}

type bidi = grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]

func TestWhoeverBreaksARuleOverASocketIsToldSo(t *testing.T) {
	hold(t)
	for _, network := range available(t, "unix", "tcp") {
		lis := listenFor(t, network, echo{bidi: func(s bidi) error {
			<-s.Context().Done()
			return s.Context().Err()
		}}, nearcall.MaxHeaderListSize(1<<20))
		stop := good(t, lis)
		hello := greeting(wire.MinWindow)
		part := append([]byte{0xfe, 0xff, byte(wire.KindPart), 1}, make([]byte, 0xfffc)...)
		for name, c := range map[string]struct {
			then func(s *stranger) []byte
			want string
		}{
			"an answer first": {func(*stranger) []byte { return []byte{2, 0, 0x90, 1} }, "call 1, which was not opened"},
			"an unknown call": {func(*stranger) []byte { return wire.AppendReset(nil, 7, 0, "") }, "call 7, which was not opened"},
			"calls out of order": {func(s *stranger) []byte {
				a, _ := s.call("FullDuplexCall", nil, 0, nil)
				b, _ := s.call("FullDuplexCall", nil, 0, nil)
				return append(b, a...)
			}, "protocol error"},
			"credit without end": {func(*stranger) []byte { return bytes.Repeat(wire.AppendCredit(nil, 0, wire.MaxCredit-1), 3) }, "more credit than"},
			"a header of 10 MB":  {func(*stranger) []byte { return bytes.Repeat(part, 10<<20/len(part)) }, "a block is larger than"},
			"more than is wanted": {func(s *stranger) []byte {
				b, _ := s.call("FullDuplexCall", nil, 0, nil)
				return append(b, bytes.Repeat(append([]byte{0xfe, 0xff, byte(wire.KindStream | wire.FlagMessage), 1}, make([]byte, 0xfffc)...), 8)...)
			}, "than it has credit for"},
		} {
			t.Run(network+", "+name, func(t *testing.T) {
				s := meet(t, lis)
				s.t = t
				go s.write(hello, c.then(s))
				if code, text := s.farewell(); code != wire.ByeProtocol || !strings.Contains(text, c.want) {
					t.Errorf("BYE says %d, %q, want %q in it", code, text, c.want)
				}
			})
		}
		stop()
		goesOn(t, lis)
	}
}

func TestMetadataOf10MB(t *testing.T) {
	long := strings.Repeat("x", 10<<20)
	hold(t)
	defer runtime.KeepAlive(&long)
	received := make(chan int, 1)
	service := echo{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		v := metadata.ValueFromIncomingContext(ctx, "long")
		if len(v) == 1 {
			received <- len(v[0])
		}
		if in.ResponseSize > 0 {
			_ = grpc.SetHeader(ctx, metadata.Pairs("long", long))
		}
		return &testpb.SimpleResponse{}, nil
	}}
	lis := listenFor(t, "tcp", service)
	strict := listenFor(t, "tcp", service, nearcall.MaxHeaderListSize(1<<20))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "long", long)
	wantCode(t, <-invoke(ctx, dial(t, lis.Target())), codes.OK)
	if n := outcome(t, "the metadata", received); n != len(long) {
		t.Errorf("%d bytes arrived", n)
	}
	client := dial(t, strict.Target())
	for range 2 {
		err := <-invoke(ctx, client)
		wantCode(t, err, codes.Internal) // as in grpc-go
		if !strings.Contains(err.Error(), "request header") || !strings.Contains(err.Error(), fmt.Sprint(1<<20)) {
			t.Errorf("the caller is told: %v", err)
		}
		wantCode(t, <-invoke(t.Context(), client), codes.OK) // on the same connection
	}
	careful := dial(t, lis.Target(), nearcall.WithMaxHeaderListSize(1<<20))
	_, err := careful.UnaryCall(t.Context(), &testpb.SimpleRequest{ResponseSize: 1})
	wantCode(t, err, codes.Internal)
	wantCode(t, <-invoke(t.Context(), careful), codes.OK)
}

// TestNamesThatAreSentOnceCostLittleEachTime checks that the work for a call does not grow
// with the length of its profile and method, which it names by numbers.
func TestNamesThatAreSentOnceCostLittleEachTime(t *testing.T) {
	hold(t)
	const calls, most = 100, 10 << 10 // bytes, for each call
	long := strings.Repeat("\xff", 60_000)
	lis := listenFor(t, "tcp", echo{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		metadata.FromIncomingContext(ctx)
		return &testpb.SimpleResponse{}, nil
	}})
	for name, profile := range map[string]link.Profile{
		"short":    {Authority: "localhost"},
		"encoding": {Authority: "localhost", Encoding: long},
		"subtype":  {Authority: "localhost", ContentSubtype: strings.Repeat("A", len(long))},
	} {
		t.Run(name, func(t *testing.T) {
			s := meet(t, lis)
			s.write(wire.AppendHello([]byte(wire.Magic), &wire.Hello{Version: 1, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: 1 << 30}))
			call := func() []byte {
				step := &wire.Step{Stream: s.next, Open: &link.CallHeader{Method: "/grpc.testing.TestService/UnaryCall", Profile: &profile}, HasMessage: true, HalfClose: true}
				s.next += 2
				b, _ := s.enc.Append(nil, step, wire.MinWindow)
				return b
			}
			replies := make(chan int)
			go func() {
				_ = s.frames(func(f wire.Frame) bool {
					replies <- len(f.Body)
					return f.Kind == wire.KindBye
				})
				close(replies)
			}()
			s.write(call())
			for range 2 { // HELLO, and the first reply
				<-replies
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got := 0
			for range calls {
				s.write(call())
				got += <-replies
			}
			runtime.ReadMemStats(&after)
			if allocated := after.TotalAlloc - before.TotalAlloc; got > calls*most || allocated > 2*calls*most {
				t.Errorf("%d calls are replied to with %d bytes, and allocate %d", calls, got, allocated)
			}
			s.write(wire.AppendBye(nil, wire.ByeClosed, ""))
			_ = s.conn.(*net.TCPConn).CloseWrite()
			for range replies {
			}
		})
	}
	conn, err := nearcall.NewClient(lis.Target())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, method := range []string{"/" + long + "/m", long, "/grpc.testing.TestService/" + long} {
		err := conn.Invoke(t.Context(), method, &testpb.Empty{}, &testpb.Empty{})
		wantCode(t, err, codes.Unimplemented)
		if n := len(err.Error()); n > 2000 {
			t.Errorf("the error has %d bytes", n)
		}
	}
}

// TestMetadataOfManyEntries checks that a handler sees all metadata, each time it asks, and the
// compressors that its caller accepts.
func TestMetadataOfManyEntries(t *testing.T) {
	hold(t)
	md := metadata.MD{"grpc-accept-encoding": {"own"}}
	for i := range 1000 {
		md[fmt.Sprint("key", i)] = []string{fmt.Sprint("a", i), fmt.Sprint("b", i)}
	}
	type seen struct {
		md, again metadata.MD
		accepts   []string
	}
	received := make(chan seen, 1)
	lis := listenFor(t, "tcp", echo{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		var s seen
		s.accepts, _ = nearcall.ClientSupportedCompressors(ctx)
		s.md, _ = metadata.FromIncomingContext(ctx)
		s.again, _ = metadata.FromIncomingContext(ctx)
		received <- s
		return &testpb.SimpleResponse{}, nil
	}})
	client := dial(t, lis.Target())
	for range 3 { // whose keys are new, and known
		wantCode(t, <-invoke(metadata.NewOutgoingContext(t.Context(), md), client), codes.OK)
		got := outcome(t, "the metadata", received)
		for k, want := range md {
			if v := got.md[k]; k != "grpc-accept-encoding" && !slices.Equal(v, want) {
				t.Fatalf("%s is %q, want %q", k, v, want)
			}
		}
		if !maps.EqualFunc(got.md, got.again, slices.Equal[[]string]) {
			t.Errorf("first there are %d keys, then %d", len(got.md), len(got.again))
		}
		if !slices.Contains(got.accepts, "own") {
			t.Errorf("the caller accepts %q", got.accepts)
		}
	}
}

// ConnectionTimeout includes the TLS handshake, even if bytes keep arriving.
func TestPeersThatDrawATLSHandshakeOutAreDropped(t *testing.T) {
	certs := newCertificates(t)
	for name, between := range map[string]time.Duration{"silent": time.Hour, "slow": time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lis := bufconn.Listen(1 << 10)
				start(t, serve(t, echo{}, nearcall.Creds(credentials.NewTLS(certs.server(nil))), nearcall.ConnectionTimeout(5*time.Second)), lis)
				conn, err := lis.DialContext(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				begin := time.Now()
				over := make(chan struct{})
				var talking sync.WaitGroup
				defer talking.Wait()
				talking.Go(func() {
					for _, b := range []byte{0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3} {
						select {
						case <-over:
							return
						case <-time.After(between):
							_, _ = conn.Write([]byte{b})
						}
					}
				})
				_, _ = io.Copy(io.Discard, conn)
				close(over)
				if d := time.Since(begin); d < 5*time.Second || d > 15*time.Second {
					t.Errorf("it was dropped after %v, want 5 s", d)
				}
			})
		})
	}
}

// ConnectionTimeout covers everything a peer does before it has identified itself.
func TestPeersThatDoNotSayWhoTheyAreAreDropped(t *testing.T) {
	for name, talk := range map[string]func(net.Conn){
		"silent": func(net.Conn) {},
		"slow": func(c net.Conn) {
			for _, b := range []byte("nearcall/1\n") {
				time.Sleep(time.Second)
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
			}
		},
		"without a hello": func(c net.Conn) {
			time.Sleep(4 * time.Second)
			_, _ = io.WriteString(c, "nearcall/1\n")
		},
		"slow HTTP": func(c net.Conn) {
			for _, b := range []byte("PRI * HTTP") {
				time.Sleep(time.Second)
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lis := bufconn.Listen(1 << 10)
				start(t, serve(t, echo{}, nearcall.ConnectionTimeout(5*time.Second)), lis)
				conn, err := lis.DialContext(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				begin := time.Now()
				var talking sync.WaitGroup
				defer talking.Wait()
				talking.Go(func() { talk(conn) })
				_, _ = io.Copy(io.Discard, conn)
				if d := time.Since(begin); d != 5*time.Second {
					t.Errorf("it was dropped after %v, want 5 s", d)
				}
			})
		})
	}
}

func TestStopDoesNotWaitForPeersThatDoNotSayWhoTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lis := bufconn.Listen(1 << 10)
		srv := serve(t, echo{})
		start(t, srv, lis)
		conn, err := lis.DialContext(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		synctest.Wait()
		begin := time.Now()
		srv.Stop()
		if d := time.Since(begin); d != 0 {
			t.Errorf("Stop took %v", d)
		}
	})
}
