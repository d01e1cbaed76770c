package grpcinside

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/relay"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/transport/grpcgo"
)

const frameHeaders = 1

type echo struct {
	testpb.UnimplementedTestServiceServer
}

// FullDuplexCall answers each message with one.
func (echo) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	for {
		if _, err := s.Recv(); err != nil {
			return nil
		}
		if err := s.Send(&testpb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

// connected returns a sessionConn whose session has an echo, and the session.
func connected(t testing.TB) (*sessionConn, link.Session) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	testpb.RegisterTestServiceServer(srv, echo{})
	go srv.Serve(lis)
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	s := grpcgo.NewSession(conn, "echo", "echo", link.Peer{Addr: lis.Addr(), LocalAddr: lis.Addr()}, func() {})
	c := newSessionConn(s, s.Retire)
	t.Cleanup(func() {
		_ = c.Close()
		_ = conn.Close()
		srv.Stop()
	})
	return c, s
}

// newSessionConn returns a sessionConn of s, as package balance makes it.
func newSessionConn(s link.Session, end func()) *sessionConn {
	serve := func(opts ...grpc.ServerOption) *grpc.Server {
		accept := func(context.Context) (link.Acceptor, error) {
			return &relay.Acceptor{To: s, Go: func(f func()) { go f() }}, nil
		}
		return grpc.NewServer(append(opts, grpc.UnknownServiceHandler(grpcgo.Handler(accept)), grpc.ForceServerCodecV2(grpcgo.Codec()))...)
	}
	return NewSessionConn(s, serve, end).(*sessionConn)
}

// over returns a client of grpc-go over a sessionConn.
func over(t *testing.T, c *sessionConn) testpb.TestServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///session", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return c, nil }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return testpb.NewTestServiceClient(conn)
}

// A call that runs when the session ends can finish, as after GOAWAY.
func TestACallOfGRPCFinishesWhenItsSessionIsDone(t *testing.T) {
	c, session := connected(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := over(t, c).FullDuplexCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	exchange := func() {
		t.Helper()
		if err := s.Send(&testpb.StreamingOutputCallRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	exchange()
	session.Retire()
	for range 10 {
		exchange()
	}
	_ = s.CloseSend()
	if _, err := s.Recv(); err != io.EOF {
		t.Error(err)
	}
	leak.Eventually(t, "the connection ends", func() bool { return link.IsClosed(c.closed) })
}

// readFrame returns the kind and the payload of the next frame.
func readFrame(t testing.TB, c io.Reader) (kind, flags byte, payload []byte) {
	t.Helper()
	var head [frameHead]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		t.Fatal(err)
	}
	payload = make([]byte, binary.BigEndian.Uint32(head[:])>>8)
	if _, err := io.ReadFull(c, payload); err != nil {
		t.Fatal(err)
	}
	return head[3], head[4], payload
}

// headers returns a frame that begins a call.
func headers() []byte {
	path := "/grpc.testing.TestService/FullDuplexCall"
	block := append([]byte{0x83, 0x86, 0x04, byte(len(path))}, path...)
	block = append(append(block, 0x01, 4), "echo"...)
	block = append(append(block, 0x0f, 0x10, 16), "application/grpc"...)
	block = append(append(append(block, 0x00, 2), "te"...), append([]byte{8}, "trailers"...)...)
	b := frame(nil, frameHeaders, 4, block)
	b[8] = 1
	return b
}

// A sessionConn answers all PINGs, however many there are: grpc-go's keepalive sends them while a
// health check says nothing.
func TestASessionConnAnswersPings(t *testing.T) {
	for _, first := range []string{"before a call", "during a call"} {
		t.Run(first, func(t *testing.T) {
			c, _ := connected(t)
			b := frame([]byte(preface), frameSettings, 0, nil)
			if first == "during a call" {
				b = append(b, headers()...)
			}
			const pings = 20
			for n := range pings {
				b = frame(b, framePing, 0, []byte{1, 0, 0, 0, 0, 0, 0, byte(n)})
			}
			go c.Write(b)
			for n := 0; n < pings; {
				switch kind, flags, payload := readFrame(t, c); {
				case kind == framePing && flags == flagAck:
					if payload[0] != 1 || int(payload[7]) != n {
						t.Fatalf("PING %d was answered with %v", n, payload)
					}
					n++
				case kind == frameSettings, kind == frameWindowUpdate:
				default:
					t.Fatalf("after %d PINGs: frame of type %d with %q", n, kind, payload)
				}
			}
		})
	}
}

// Each place where a sessionConn waits is left for each reason for which it must be.
func TestAllWaitsOfSessionConnsEnd(t *testing.T) {
	closing := func(c *sessionConn, _ link.Session) { _ = c.Close() }
	retiring := func(_ *sessionConn, s link.Session) { s.Retire() }
	losing := func(_ *sessionConn, s link.Session) { _ = s.Close(net.ErrClosed) }
	first := frame([]byte(preface), frameSettings, 0, nil)
	writing := func(c *sessionConn, _ link.Session) { _, _ = c.Write(first) }
	read := func(c *sessionConn) { _, _ = c.Read(make([]byte, 1)) }
	readAll := func(c *sessionConn) { _, _ = io.Copy(io.Discard, c) }
	idle := func(*sessionConn) {}
	// calling lets the server go on, which has the beginning of a call.
	calling := func(c *sessionConn) {
		_, _ = c.Write(slices.Concat(first, headers()))
	}
	for what, wait := range map[string]struct {
		before func(*sessionConn)
		waits  func(*sessionConn)
		at     [2]string // the state and the function of a goroutine that waits
		ends   map[string]func(*sessionConn, link.Session)
	}{
		"Read": {idle, read, [2]string{"select", "grpcinside.(*sessionConn).ready("},
			map[string]func(*sessionConn, link.Session){"a frame": writing, "the end of the session": retiring, "Close": closing}},
		"ReadOnReady": {idle, func(c *sessionConn) { _, _, _ = c.ReadOnReady(1, mem.DefaultBufferPool()) }, [2]string{"select", "grpcinside.(*sessionConn).ready("},
			map[string]func(*sessionConn, link.Session){"a frame": writing, "the end of the session": retiring, "Close": closing}},
		"Read from a server": {calling, readAll, [2]string{"sync.Cond.Wait", "grpcinside.(*sessionConn).Read("},
			map[string]func(*sessionConn, link.Session){"the loss of the session": losing, "Close": closing}}, // retired, it lets the call finish
		"Write to a server": {func(c *sessionConn) {
			near, far := net.Pipe() // nobody reads
			t.Cleanup(func() { _ = far.Close() })
			c.server = near
			go func() {
				<-c.closed
				_ = near.Close() // as serveLocked does
			}()
		}, func(c *sessionConn) { _, _ = c.Write(first) }, [2]string{"select", "grpcinside.(*sessionConn).Write("},
			map[string]func(*sessionConn, link.Session){"Close": closing}},
	} {
		for by, end := range wait.ends {
			t.Run(what+"/"+by, func(t *testing.T) {
				c, session := connected(t)
				wait.before(c)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					wait.waits(c)
				}()
				leak.AwaitBlocked(t, wait.at[0], wait.at[1])
				end(c, session)
				leak.Within(t, time.Minute, what+" is ended by "+by, func() { <-ended })
			})
		}
	}
}

// A sessionConn understands frames wherever the writes are split.
func FuzzSessionConnWrite(f *testing.F) {
	f.Add([]byte{1, 2, 3}, []byte("\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x01\x00\x00"))
	f.Add([]byte{24, 9, 8}, []byte("\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, splits, frames []byte) {
		for i := 0; i+frameHead <= len(frames); i += frameHead + int(binary.BigEndian.Uint32(frames[i:])>>8) {
			if frames[i+3] == frameHeaders {
				t.Skip()
			}
		}
		all := append([]byte(preface), frames...)
		whole, split := newSessionConn(nil, func() {}), newSessionConn(nil, func() {})
		if n, err := whole.Write(all); n != len(all) || err != nil {
			t.Fatal(n, err)
		}
		for rest := all; len(rest) > 0; {
			n := 1
			if len(splits) > 0 {
				n, splits = int(splits[0]), splits[1:]
			}
			n = min(n, len(rest))
			if wrote, err := split.Write(rest[:n]); wrote != n || err != nil {
				t.Fatal(wrote, err)
			}
			rest = rest[n:]
		}
		if string(whole.out) != string(split.out) || string(whole.in) != string(split.in) || string(whole.settings) != string(split.settings) || string(whole.updates) != string(split.updates) {
			t.Errorf("whole: %+v, split: %+v", whole, split)
		}
		if len(split.in) >= len(all) && len(all) >= len(preface)+frameHead {
			t.Errorf("%d bytes are kept", len(split.in))
		}
	})
}
