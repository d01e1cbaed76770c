package websocket

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
	"github.com/nearcall/nearcall/internal/wire"
)

func TestMain(m *testing.M) { leak.Main(m) }

// pair returns the two ends of a WebSocket.
func pair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	a, b := net.Pipe()
	client, server = newConn(a, nil, true, nil), newConn(b, nil, false, nil)
	t.Cleanup(func() {
		_ = a.Close()
		_ = b.Close()
	})
	return client, server
}

func TestStreamsOverWebSocket(t *testing.T) {
	transporttest.Suite{
		Connect: func(t *testing.T, deadline time.Time) (caller, callee link.Stream) {
			client, server := pair(t)
			config := &options.NewServer(nil).Connections
			config.StreamWindow, config.MaxStreamWindow = 64<<10, 64<<10
			cs, ss := mux.New(client, mux.Options{Config: config, HelloTime: time.Minute, Client: true}), mux.New(server, mux.Options{Config: config, HelloTime: time.Minute})
			accepted := make(transporttest.Accepter, 1)
			ss.Start(accepted)
			cs.Start(nil)
			t.Cleanup(func() {
				_ = cs.Close(errors.New("the test is over"))
				<-cs.Gone()
				<-ss.Gone()
			})
			caller, err := cs.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}, Deadline: deadline})
			if err != nil {
				t.Fatal(err)
			}
			return caller, <-accepted
		},
		Window: wire.MinWindow,
		Codec:  codec.Proto(),
	}.Run(t)
}

// A scripted socket takes a few bytes of each write, at random.
type scripted struct {
	net.Conn // for Write, which takes all
	r        *rand.Rand
	got      bytes.Buffer
}

func (s *scripted) TryRead([]byte) (int, error) { return 0, nil }

func (s *scripted) TryWrite(all ...[]byte) (int, error) {
	b := bytes.Join(all, nil)
	n := s.r.IntN(len(b) + 1)
	if s.r.IntN(3) == 0 {
		n = min(n, 3) // within the header
	}
	s.got.Write(b[:n])
	return n, nil
}

func (s *scripted) Write(b []byte) (int, error) { return s.got.Write(b) }

// TestWritesInPartsAreOneStream checks that what TryWrite has written in part, and Write has
// completed, is read as it was.
func TestWritesInPartsAreOneStream(t *testing.T) {
	noise := make([]byte, 200_000)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 0))
		client := seed%2 == 0
		s := &scripted{r: r}
		c := newConn(s, s, client, nil).(*PromptConn)
		var want []byte
		for range 10 {
			var all [][]byte
			for range 1 + r.IntN(3) {
				all = append(all, bytes.Clone(noise[:1+r.IntN([]int{10, 1000, len(noise)}[r.IntN(3)])]))
			}
			sent := bytes.Join(all, nil)
			n, err := c.TryWrite(all...)
			if err != nil {
				t.Fatal(err)
			}
			rest := bytes.Clone(sent[n:])
			for rest := rest; len(rest) > 0; {
				k := 1 + r.IntN(len(rest))
				if m, err := c.WriteAll([][]byte{rest[:k/2], rest[k/2 : k]}); err != nil || m != int64(k) {
					t.Fatalf("%d of %d bytes, %v", m, k, err)
				}
				rest = rest[k:]
			}
			want = append(want, sent...)
			if after := bytes.Join(all, nil); !bytes.Equal(after, sent) {
				t.Fatal("a write has changed the caller's bytes")
			}
		}
		in := reader{client: !client}
		got := s.got.Bytes()
		n, err := in.payload(got)
		if err != nil || !bytes.Equal(got[:n], want) {
			t.Fatalf("seed %d: %d bytes and %v, want %d", seed, n, err, len(want))
		}
	}
}

func TestAPingIsAnsweredBetweenMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		c := newConn(b, nil, false, nil)
		read := make(chan error)
		go func() {
			_, err := c.Read(make([]byte, 10))
			read <- err
		}()
		for _, payload := range []string{"one", ""} {
			if _, err := a.Write(frame(true, flagFinal|byte(opPing), []byte(payload))); err != nil {
				t.Fatal(err)
			}
			want := frame(false, flagFinal|byte(opPong), []byte(payload))
			got := make([]byte, len(want))
			if _, err := io.ReadFull(a, got); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%x, %v, want %x", got, err, want)
			}
		}
		// While a message is being written the PONG waits, and later PINGs replace it.
		written := make(chan error)
		go func() {
			_, err := c.Write([]byte("hello"))
			written <- err
		}()
		synctest.Wait()
		for _, payload := range []string{"old", "new"} {
			if _, err := a.Write(frame(true, flagFinal|byte(opPing), []byte(payload))); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		want := append(frame(false, flagFinal|byte(opBinary), []byte("hello")), frame(false, flagFinal|byte(opPong), []byte("new"))...)
		got := make([]byte, len(want))
		if _, err := io.ReadFull(a, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
		if err := <-written; err != nil {
			t.Error(err)
		}
		_ = a.Close()
		if err := <-read; err != io.EOF {
			t.Error(err)
		}
		_ = c.Close()
	})
}

func TestTheCloseFrameSaysWhatWasWrong(t *testing.T) {
	for name, c := range map[string]struct {
		in   []byte
		want string
	}{
		"nothing":         {nil, "\x03\xe8"},
		"text":            {frame(true, flagFinal|byte(opText), []byte("hi")), "\x03\xeb"},
		"no mask":         {frame(false, flagFinal|byte(opBinary), []byte("hi")), "\x03\xea"},
		"the peer's code": {frame(true, flagFinal|byte(opClose), []byte("\x03\xe9")), "\x03\xe9"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := net.Pipe()
				conn := newConn(b, nil, false, nil)
				if c.in != nil {
					go func() { _, _ = a.Write(c.in) }()
					if _, err := conn.Read(make([]byte, 10)); err == nil {
						t.Error("it is read")
					}
				}
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
				want := frame(false, flagFinal|byte(opClose), []byte(c.want))
				got, err := io.ReadAll(a)
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("%x, %v, want %x", got, err, want)
				}
				_ = conn.Close() // once more
				if _, err := conn.Write([]byte("late")); err == nil {
					t.Error("something is written after the Close frame")
				}
			})
		})
	}
}

// Close does not wait for a peer that reads nothing, and unblocks Read and Write.
func TestCloseDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := net.Pipe()
		conn := newConn(b, nil, false, nil)
		errs := make(chan error, 2)
		go func() {
			_, err := conn.Read(make([]byte, 10))
			errs <- err
		}()
		go func() {
			_, err := conn.Write([]byte("hello"))
			errs <- err
		}()
		synctest.Wait()
		began := time.Now()
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-errs; err == nil {
				t.Error("it succeeds")
			}
		}
		if d := time.Since(began); d > closeTimeout {
			t.Errorf("it takes %v", d)
		}
		time.Sleep(closeTimeout)
	})
}

// TestCloseFrameFollowsMessage checks that Close does not cut off
// what a slow reader has not read yet.
func TestCloseFrameFollowsMessage(t *testing.T) {
	for _, prompt := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			var socket Prompt
			if prompt {
				socket = &scripted{Conn: near}
			}
			conn := newConn(near, socket, false, nil)
			go func() { _, _ = conn.Write([]byte("hello")) }()
			synctest.Wait() // until it blocks
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
			if b, err := io.ReadAll(far); err != nil || string(b) != "\x82\x05hello\x88\x02\x03\xe8" {
				t.Errorf("%q, %v", b, err)
			}
		})
	}
}
