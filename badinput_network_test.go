package nearcall_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// What each rule of the protocol is worth that a peer breaks is tested in
// internal/mux. Here is what becomes of a server of real sockets, and of those
// who behave.

// A stranger is a peer of a server that writes its frames itself.
type stranger struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
	enc  wire.Encoder
	next uint64 // the number of its next call
}

// hold has a test check, when everything it has set up is gone, that nothing is
// left of it.
func hold(t *testing.T) {
	t.Helper()
	before := measure()
	t.Cleanup(func() { before.check(t) })
}

// meet connects to lis without a word.
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

// greeting is how a client begins that gives window to each call and to all.
func greeting(window int64) []byte {
	return wire.AppendHello([]byte(wire.Magic), &wire.Hello{Version: 1, Stream: window, Connection: window, Block: wire.MinBlock})
}

// write writes what the server may be unwilling to read.
func (s *stranger) write(b ...[]byte) { _, _ = s.conn.Write(slices.Concat(b...)) }

// call returns the frames that open a call, and its number.
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

// frames calls f for each frame that comes, until the connection ends, which it
// returns the reason of, or f says that it is enough.
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

// farewell reads until the connection ends, and returns what the BYE says.
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

// goesOn checks that a server serves its good clients.
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

// good is a client that makes calls until it is stopped, of which none may fail.
func good(t *testing.T, lis nearcall.Listener) (stop func()) {
	t.Helper()
	client := dial(t, lis.Target())
	over := make(chan struct{})
	var all sync.WaitGroup
	n := 0
	all.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
			}
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			wantCode(t, <-invoke(ctx, client), codes.OK)
			cancel()
			n++
			time.Sleep(time.Millisecond)
		}
	})
	return func() {
		close(over)
		all.Wait()
		if n == 0 {
			t.Error("the good client made no call")
		}
	}
}

// listenFor serves e over network, to whatever client of nearcall comes: what is
// to stay a socket does.
func listenFor(t *testing.T, network string, e echo, opts ...nearcall.ServerOption) nearcall.Listener {
	t.Helper()
	if network == "unix" {
		opts = append(opts, nearcall.NoUpgrade())
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
				case 1: // as nearcall's begin
					junk = append([]byte(wire.Magic), junk...)
				case 2: // and go on
					junk = append(greeting(wire.MinWindow), junk...)
				case 3: // in frames
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
				// A client that has left in the middle of a frame may be left without an answer.
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

// The keepalive that a server may have ends the connections of those who leave
// in the middle of a word.
func TestHalfAFrameAndSilence(t *testing.T) {
	hold(t)
	ended := make(chan error, 1)
	lis := listenFor(t, "tcp", echo{bidi: func(s bidi) error {
		_, err := s.Recv()
		ended <- s.Context().Err()
		return err
	}}, nearcall.KeepaliveParams(keepalive.ServerParameters{Time: time.Second, Timeout: time.Second}), nearcall.ConnectionTimeout(2*time.Second))
	defer good(t, lis)()
	hello := greeting(wire.MinWindow)
	var all sync.WaitGroup
	for name, said := range map[string]func(s *stranger) []byte{
		"half a line":   func(*stranger) []byte { return hello[:5] },
		"half a hello":  func(*stranger) []byte { return hello[:len(wire.Magic)+4] },
		"half a length": func(*stranger) []byte { return append(bytes.Clone(hello), 9) },
		"half a frame":  func(*stranger) []byte { return append(bytes.Clone(hello), 9, 0, byte(wire.KindPing), 0) },
		"half a message": func(s *stranger) []byte {
			b, _ := s.call("FullDuplexCall", nil, 0, nil)
			return append(append(bytes.Clone(hello), b...), 200, 0, 0x8a, 1, 99)
		},
	} {
		s := meet(t, lis)
		all.Go(func() {
			begin := time.Now()
			s.write(said(s))
			_, _ = io.Copy(io.Discard, s.in)
			if d := time.Since(begin); d < time.Second || d > 10*time.Second {
				t.Errorf("after %s the connection lasts %v", name, d)
			}
		})
	}
	all.Wait()
	if err := <-ended; err != context.Canceled {
		t.Errorf("the handler's context: %v", err)
	}
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
	if n := <-received; n != len(long) {
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

// stubborn is a service whose streams end when they are told to, and not when
// their callers leave. It counts those that run, and keeps the most there were.
func stubborn() (e echo, most *atomic.Int64, release func()) {
	end := make(chan struct{})
	var running atomic.Int64
	most = new(atomic.Int64)
	return echo{bidi: func(bidi) error {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-end
		return nil
	}}, most, sync.OnceFunc(func() { close(end) })
}

// flood opens n calls on one connection, and resets them at once where leave is
// set. It returns how many the server has reset as unprocessed.
func flood(t *testing.T, lis net.Listener, n int, leave bool) (refused int64, s *stranger) {
	t.Helper()
	s = meet(t, lis)
	_ = s.conn.SetDeadline(time.Now().Add(time.Minute))
	var resets atomic.Int64
	pong := make(chan struct{})
	go func() {
		_ = s.frames(func(f wire.Frame) bool {
			if f.Kind == wire.KindReset && f.Body[0] == byte(wire.ResetUnprocessed) {
				resets.Add(1)
			}
			if f.Kind == wire.KindPong {
				close(pong)
			}
			return f.Kind == wire.KindPong
		})
	}()
	s.write(greeting(wire.MinWindow))
	for i := 0; i < n; i += 1000 {
		var b []byte
		for range min(1000, n-i) {
			open, id := s.call("FullDuplexCall", nil, 0, nil)
			b = append(b, open...)
			if leave {
				b = wire.AppendReset(b, id, wire.ResetCancelled, "")
			}
		}
		s.write(b)
	}
	s.write(wire.AppendPing(nil, wire.KindPing, [8]byte{}))
	select {
	case <-pong:
	case <-time.After(time.Minute):
		t.Error("the server has not read all of it")
	}
	return resets.Load(), s
}

// manyCalls is 100,000, and a tenth of that with -short.
func manyCalls() int {
	if testing.Short() {
		return 10_000
	}
	return 100_000
}

func TestAPeerThatOpens100000CallsWithALimit(t *testing.T) {
	hold(t)
	const limit = 100
	calls := manyCalls()
	service, most, release := stubborn()
	lis := listenFor(t, "tcp", service, nearcall.MaxConcurrentStreams(limit))
	defer good(t, lis)()
	defer release()
	refused, _ := flood(t, lis, calls, false)
	if refused != int64(calls-limit) || most.Load() > limit {
		t.Errorf("%d calls were refused, and %d ran at a time", refused, most.Load())
	}
	release()
	goesOn(t, lis)
}

// The peer leaves its calls as soon as it has opened them, so that few are open:
// the handlers run on.
func TestAPeerThatOpensAndLeaves100000CallsWithALimit(t *testing.T) {
	hold(t)
	const limit = 100
	calls := manyCalls()
	service, most, release := stubborn()
	lis := listenFor(t, "tcp", service, nearcall.MaxConcurrentStreams(limit))
	defer good(t, lis)()
	defer release()
	flooded := make(chan int64)
	go func() {
		refused, _ := flood(t, lis, calls, true)
		flooded <- refused
	}()
	eventually(t, "as many handlers run as calls may", func() bool { return most.Load() == limit })
	goesOn(t, lis) // others are served
	select {
	case <-flooded:
		t.Error("the server reads on while no handler returns")
	default:
	}
	release()
	if refused := <-flooded; refused > 0 || most.Load() > limit {
		t.Errorf("%d calls are answered, and %d handlers ran at a time, where %d calls may", refused, most.Load(), limit)
	}
	goesOn(t, lis)
}

// Handlers of calls that were left end by their contexts.
func TestAPeerThatOpensAndLeavesManyCalls(t *testing.T) {
	hold(t)
	var running atomic.Int64
	lis := listenFor(t, "tcp", echo{bidi: func(s bidi) error {
		running.Add(1)
		defer running.Add(-1)
		_, err := s.Recv()
		return err
	}})
	defer good(t, lis)()
	before := heap()
	_, _ = flood(t, lis, 10_000, true)
	eventually(t, "all handlers return", func() bool { return running.Load() == 0 })
	if now := heap(); now > before+slack {
		t.Errorf("the connection holds %d bytes", now-before)
	}
	goesOn(t, lis)
}

// Calls without a limit cost what they cost; when the peer goes, all is given
// back.
func TestAPeerThatKeepsThousandsOfCallsOpen(t *testing.T) {
	hold(t)
	const calls = 3000 // the race detector knows 8128 goroutines
	var running atomic.Int64
	lis := listenFor(t, "tcp", echo{bidi: func(s bidi) error {
		running.Add(1)
		defer running.Add(-1)
		_, err := s.Recv()
		return err
	}}, nearcall.MaxConcurrentStreams(0))
	defer good(t, lis)()
	refused, s := flood(t, lis, calls, false)
	eventually(t, "all handlers run", func() bool { return running.Load() == calls })
	if refused > 0 {
		t.Errorf("%d calls were refused", refused)
	}
	_ = s.conn.Close()
	eventually(t, "all handlers return", func() bool { return running.Load() == 0 })
	goesOn(t, lis)
}

// A peer that never reads stops those who send to it, however much credit it
// gives, and is given up where there is a keepalive.
func TestAPeerThatReadsNothing(t *testing.T) {
	for name, window := range map[string]int64{"a window of 64 KiB": wire.MinWindow, "a window without end": 1 << 40} {
		t.Run(name, func(t *testing.T) {
			hold(t)
			var sent atomic.Int64
			ended := make(chan error, 1)
			lis := listenFor(t, "tcp", echo{bidi: func(s bidi) error {
				m := &testpb.StreamingOutputCallResponse{Payload: payload(32 << 10)}
				for {
					if err := s.Send(m); err != nil {
						ended <- s.Context().Err()
						return err
					}
					if sent.Add(1) > 10_000 { // 320 MB
						return nil
					}
				}
			}}, nearcall.KeepaliveParams(keepalive.ServerParameters{Time: time.Second, Timeout: time.Second}))
			defer good(t, lis)()
			s := meet(t, lis)
			before := heap()
			open, _ := s.call("FullDuplexCall", nil, 0, nil)
			s.write(greeting(window), open)
			time.Sleep(500 * time.Millisecond)
			if now := heap(); now > before+32<<20 {
				t.Errorf("%d bytes are in use for a peer that does not read, after %d messages", now-before, sent.Load())
			}
			select {
			case err := <-ended:
				if err != context.Canceled {
					t.Errorf("the handler's context: %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Error("the handler still sends")
				_ = s.conn.Close()
			}
			goesOn(t, lis)
		})
	}
}

// The deadline for a peer to say who it is holds for its TLS handshake, too,
// however many bytes of it come.
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
				if d := time.Since(begin); d < 5*time.Second || d > 7*time.Second {
					t.Errorf("it was dropped after %v, want 5 s", d)
				}
			})
		})
	}
}

// impatient are options of a client that connects again at once.
func impatient() nearcall.DialOption {
	return nearcall.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.2, MaxDelay: 50 * time.Millisecond}})
}

func TestAServerThatIsKilledInTheMiddleOfAStream(t *testing.T) {
	for _, network := range networks("unix", "tcp") {
		t.Run(network, func(t *testing.T) {
			hold(t)
			begin := func(target string) *process {
				p, err := spawn("TestServeInAProcess", serveTarget+"="+target, serveService+"=echo")
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			server := begin(targetFor(t, network))
			client := dial(t, server.target, over(network, impatient())...)
			s, err := client.FullDuplexCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: payload(10)}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Recv(); err != nil {
				t.Fatal(err)
			}
			killed := time.Now()
			if err := server.end(os.Kill); err != nil {
				t.Fatal(err)
			}
			_, err = s.Recv()
			wantCode(t, err, codes.Unavailable)
			wantCode(t, <-invoke(t.Context(), client), codes.Unavailable)
			if d := time.Since(killed); d > 5*time.Second {
				t.Errorf("it took %v to tell", d)
			}
			again := begin(server.target)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			wantCode(t, <-invoke(ctx, client, grpc.WaitForReady(true)), codes.OK)
			if err := again.end(os.Kill); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCallFromAProcess is a client that another test starts, and kills.
func TestCallFromAProcess(t *testing.T) {
	target := os.Getenv(callTarget)
	if target == "" {
		t.Skip("only in a child process")
	}
	client := dial(t, target)
	s, err := client.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: payload(10)}); err != nil {
		t.Fatal(err)
	}
	call := invoke(t.Context(), client)
	whenTold(target)
	<-call
}

func TestAClientThatIsKilledInTheMiddleOfAStream(t *testing.T) {
	for _, network := range networks("unix", "tcp") {
		t.Run(network, func(t *testing.T) {
			hold(t)
			ended := make(chan error, 1)
			lis := listenFor(t, network, echo{bidi: func(s bidi) error {
				for {
					if _, err := s.Recv(); err != nil {
						<-s.Context().Done()
						ended <- s.Context().Err()
						wantCode(t, err, codes.Canceled)
						return err
					}
				}
			}})
			client, err := spawn("TestCallFromAProcess", callTarget+"="+lis.Target())
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
			if len(ended) > 0 {
				t.Error("the stream ended before its client was killed")
			}
			if err := client.end(os.Kill); err != nil {
				t.Fatal(err)
			}
			wantCancelled(t, ended, 20*time.Second)
			goesOn(t, lis)
		})
	}
}

// wantCancelled waits for a handler to say how its context ended.
func wantCancelled(t *testing.T, ended <-chan error, within time.Duration) {
	t.Helper()
	select {
	case err := <-ended:
		if err != context.Canceled {
			t.Errorf("the handler's context: %v", err)
		}
	case <-time.After(within):
		t.Error("the handler goes on")
	}
}

// A network that loses everything from some time on, and says nothing.
func TestANetworkThatSwallowsEverything(t *testing.T) {
	hold(t)
	ended := make(chan error, 1)
	lis := listenFor(t, "tcp", echo{bidi: func(s bidi) error {
		<-s.Context().Done()
		ended <- s.Context().Err()
		return s.Context().Err()
	}}, nearcall.KeepaliveParams(keepalive.ServerParameters{Time: time.Second, Timeout: time.Second}))
	p := newProxy(t, 0)
	p.calm = true
	target := p.forward(lis.Addr())
	defer p.close()
	client := dial(t, target)
	wantCode(t, <-invoke(t.Context(), client), codes.OK)
	if _, err := client.FullDuplexCall(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantCode(t, <-invoke(t.Context(), client), codes.OK) // so that the other has arrived
	p.swallow.Store(true)
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	wantCode(t, <-invoke(ctx, client), codes.DeadlineExceeded)
	if d := time.Since(begin); d < 200*time.Millisecond || d > 2*time.Second {
		t.Errorf("a deadline of 200 ms was kept after %v", d)
	}
	wantCancelled(t, ended, 10*time.Second)
	goesOn(t, lis)
}

// lossy is a connection that loses everything once it is told to.
type lossy struct {
	net.Conn
	lost *atomic.Bool
}

func (l lossy) Read(b []byte) (int, error) {
	for {
		n, err := l.Conn.Read(b)
		if err != nil || !l.lost.Load() {
			return n, err
		}
	}
}

func (l lossy) Write(b []byte) (int, error) {
	if l.lost.Load() {
		return len(b), nil
	}
	return l.Conn.Write(b)
}

// Clients ping every 10 s at most, so that this takes place in a bubble.
func TestAClientGivesANetworkUpThatSwallowsEverything(t *testing.T) {
	for name, c := range map[string]struct {
		keepalive keepalive.ClientParameters
		want      codes.Code
		least     time.Duration
		most      time.Duration
	}{
		"with keepalive":    {keepalive.ClientParameters{Time: 10 * time.Second, Timeout: time.Second}, codes.Unavailable, 11 * time.Second, 21 * time.Second},
		"without keepalive": {keepalive.ClientParameters{}, codes.DeadlineExceeded, time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lis := bufconn.Listen(1 << 16)
				start(t, serve(t, echo{}), lis)
				var lost atomic.Bool
				client := dial(t, "unix:bufconn", nearcall.WithKeepaliveParams(c.keepalive),
					nearcall.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
						conn, err := lis.DialContext(ctx)
						return lossy{conn, &lost}, err
					}))
				wantCode(t, <-invoke(t.Context(), client), codes.OK)
				begin := time.Now()
				lost.Store(true)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				wantCode(t, <-invoke(ctx, client), c.want)
				if d := time.Since(begin); d < c.least || d > c.most {
					t.Errorf("it took %v, want %v to %v", d, c.least, c.most)
				}
				lost.Store(false)
			})
		})
	}
}

// What a call's deadline is on the wire is how long it is away, so that no
// clock has to agree with another: neither when it is another machine's, nor
// when it is set.
func TestDeadlinesDoNotDependOnClocks(t *testing.T) {
	hold(t)
	type told struct {
		deadline time.Time
		ended    error
		at       time.Time
	}
	handler := make(chan told, 1)
	lis := listenFor(t, "tcp", echo{bidi: func(s bidi) error {
		d, _ := s.Context().Deadline()
		<-s.Context().Done()
		handler <- told{d, s.Context().Err(), time.Now()}
		return nil
	}})
	// The server takes what is left, and counts it by its monotonic clock.
	s := meet(t, lis)
	begin := time.Now()
	const timeout = 200 * time.Millisecond
	open, _ := s.call("FullDuplexCall", nil, timeout, nil)
	s.write(greeting(wire.MinWindow), open)
	got := <-handler
	if !strings.Contains(got.deadline.String(), " m=+") {
		t.Errorf("the handler's deadline %v has no monotonic time", got.deadline)
	}
	if left := got.deadline.Sub(begin); left < timeout || left > timeout+5*time.Second {
		t.Errorf("the handler's deadline was %v away, want %v", left, timeout)
	}
	if d := got.at.Sub(begin); got.ended != context.DeadlineExceeded || d < timeout {
		t.Errorf("the handler's context ended with %v after %v", got.ended, d)
	}

	// The client says what is left, of a deadline whose wall clock is years off.
	inner := listenTCP(t)
	defer inner.Close()
	timeouts := make(chan time.Duration, 1)
	go func() {
		conn, err := inner.Accept()
		if err != nil {
			return
		}
		s := &stranger{t: t, conn: conn, in: bufio.NewReader(conn)}
		defer conn.Close()
		s.write(greeting(wire.MinWindow))
		var dec wire.Decoder
		_ = s.frames(func(f wire.Frame) bool {
			if !f.Kind.Stream() {
				return false
			}
			rc, err := dec.Stream(f, nil, true)
			if err != nil {
				t.Error(err)
			}
			timeouts <- rc.Timeout
			return true
		})
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	ctx, leave := context.WithCancel(ctx)
	call := invoke(ctx, dial(t, "tcp:"+inner.Addr().String()))
	if left := <-timeouts; left > time.Hour || left < time.Hour-time.Minute {
		t.Errorf("a timeout of an hour is %v on the wire", left)
	}
	leave()
	<-call
	runtime.KeepAlive(ctx)
}
