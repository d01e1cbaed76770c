package web_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
)

// inBubble serves a connection in a synctest bubble, and calls f with the client's end. The client
// has sent its SETTINGS.
func inBubble(t *testing.T, f func(t *testing.T, c *frames), opts ...nearcall.ServerOption) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		lis := bufconn.Listen(1 << 20)
		srv := nearcall.NewServer(opts...)
		testpb.RegisterTestServiceServer(srv, &service{})
		ended := make(chan error, 1)
		go func() { ended <- srv.Serve(lis) }()
		conn, err := lis.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c := &frames{conn, bufio.NewReader(conn)}
		c.write(preface + settings)
		f(t, c)
		_ = c.Close()
		srv.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func (f *frames) write(frames string) { _, _ = io.WriteString(f, frames) }

// call makes a unary call of JSON, and reads its answer.
func (f *frames) call(t *testing.T, stream uint32) {
	t.Helper()
	f.write(frame(1, 4, stream, block("application/json")) + frame(0, 1, stream, "{}"))
	for {
		switch kind, flags, body := f.next(t); {
		case kind <= 1 && flags&1 != 0:
			return
		case kind == 3, kind == 7, kind == 0xff:
			t.Fatalf("the frame %d comes instead of an answer: %q", kind, body)
		}
	}
}

// uploads are the content types of a call that net/http serves.
var uploads = []string{"application/connect+proto", "application/grpc-web"}

// upload is the header block of an upload.
func upload(contentType string) string {
	text := func(s string) string { return string([]byte{byte(len(s))}) + s }
	return "\x83\x86" + "\x04" + text(path+"StreamingInputCall") + "\x01" + text("localhost") + "\x0f\x10" + text(contentType)
}

const leaving = "nearcall" // what the PING after the first GOAWAY holds

// TestTheGraceOfAnOldConnectionNeedsNoAnswer: the client is told at the age that its connection is too
// old. A call that it has made before it can know is served, and no later one. A stream that is not
// answered ends with the grace.
func TestTheGraceOfAnOldConnectionNeedsNoAnswer(t *testing.T) {
	ages := nearcall.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: time.Minute, MaxConnectionAgeGrace: 20 * time.Second})
	for _, contentType := range uploads {
		for _, answers := range []bool{true, false} {
			inBubble(t, func(t *testing.T, c *frames) {
				c.call(t, 1)
				kind, _, body := c.next(t)
				if told := binary.BigEndian.Uint32([]byte(body)); kind != 7 || told != 1<<31-1 || body[4:] != "\x00\x00\x00\x00max_age" {
					t.Fatalf("at the age comes the frame %d: %q", kind, body)
				}
				aged := time.Now()
				if kind, flags, body := c.next(t); kind != 6 || flags != 0 || body != leaving {
					t.Fatalf("then comes the frame %d: %q", kind, body)
				}
				c.write(frame(1, 4, 3, upload(contentType)))
				wait := 5 * time.Second
				if answers {
					wait = 0
					c.write(frame(6, 1, 0, leaving))
				}
				if kind, _, body := c.next(t); kind != 7 || binary.BigEndian.Uint32([]byte(body)) != 3 || time.Since(aged) != wait {
					t.Errorf("after %v comes the frame %d: %q", time.Since(aged), kind, body)
				}
				c.write(frame(1, 4, 5, upload(contentType)))
				if kind, _, body := c.next(t); kind != 0xff || time.Since(aged) != 20*time.Second {
					t.Errorf("after %v comes the frame %d: %q", time.Since(aged), kind, body)
				}
			}, ages)
		}
	}
}

// TestAnOldConnectionWithoutCallsEnds soon after its client has heard of it.
func TestAnOldConnectionWithoutCallsEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, c *frames) {
		c.call(t, 1)
		for begun := time.Now(); ; {
			kind, flags, body := c.next(t)
			switch {
			case kind == 6 && flags == 0 && body == leaving:
				begun = time.Now()
				c.write(frame(6, 1, 0, leaving))
				continue
			case kind == 7:
				continue
			case kind != 0xff || time.Since(begun) != time.Second:
				t.Errorf("after %v comes the frame %d: %q", time.Since(begun), kind, body)
			}
			return
		}
	}, nearcall.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: time.Minute}))
}

// TestTooManyPingsEndAConnection: gRPC's rule, over connections that net/http serves.
func TestTooManyPingsEndAConnection(t *testing.T) {
	const ping = "12345678"
	for name, tt := range map[string]struct {
		policy keepalive.EnforcementPolicy
		open   bool          // a call is
		every  time.Duration // the client sends a PING
		calls  bool          // the client makes a call before each PING
		want   int           // how many are answered; 10 for all
	}{
		"by default":                      {every: time.Minute, want: 3},
		"by default, slowly":              {every: 2 * time.Hour, want: 10},
		"during a call":                   {open: true, every: time.Minute, want: 3},
		"during a call, slowly":           {open: true, every: 5 * time.Minute, want: 10},
		"without a call, as permitted":    {policy: keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}, every: time.Second, want: 10},
		"without a call, faster":          {policy: keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}, every: time.Second / 2, want: 3},
		"without a call, as for calls":    {policy: keepalive.EnforcementPolicy{MinTime: time.Second}, every: time.Second, want: 3},
		"each after the answer to a call": {every: time.Millisecond, calls: true, want: 10},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *frames) {
				c.call(t, 1)
				last := uint32(1)
				if tt.open {
					last = 3
					c.write(frame(1, 4, last, upload("application/grpc-web")))
				}
				for n := range 10 {
					if tt.calls {
						last += 2
						c.call(t, last)
					}
					c.write(frame(6, 0, 0, ping))
					kind, flags, body := c.next(t)
					if kind == 6 && flags == 1 && body == ping && n < tt.want {
						time.Sleep(tt.every)
						continue
					}
					if n != tt.want || kind != 7 || body != string(binary.BigEndian.AppendUint32(nil, last))+"\x00\x00\x00\x0btoo_many_pings" {
						t.Errorf("after %d PINGs comes the frame %d: %q", n, kind, body)
					}
					_ = c.Close()
					return
				}
			}, nearcall.KeepaliveEnforcementPolicy(tt.policy), nearcall.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 100 * time.Hour, Time: 100 * time.Hour}))
		})
	}
}

// TestAClientMayChangeItsTable at any time, and however often. (With -race it shows whether net/http
// changes its own meanwhile.)
func TestAClientMayChangeItsTable(t *testing.T) {
	const rounds = 30
	c := start(t, &service{}).frames()
	read := make(chan int)
	go func() {
		answers, first := 0, true
		defer func() { read <- answers }()
		for answers < 10*rounds {
			kind, flags, body := c.next(t)
			switch {
			case kind == 1 && first:
				if first = false; body[0] != 0x20 {
					t.Errorf("the first answer begins with %x, not with a table of size 0", body[0])
				}
			case kind == 3, kind == 7, kind == 0xff:
				t.Errorf("the frame %d: %q", kind, body)
				return
			}
			if kind <= 1 && flags&1 != 0 {
				answers++
			}
		}
	}()
	c.write(preface + frame(4, 0, 0, "\x00\x01\x00\x00\x20\x00"))
	stream := uint32(1)
	for range rounds {
		var b strings.Builder
		for range 10 {
			b.WriteString(frame(1, 4, stream, block("application/json")) + frame(0, 1, stream, "{}"))
			b.WriteString(frame(4, 0, 0, "\x00\x01\x00\x00\x00\x00") + frame(4, 0, 0, "\x00\x01\x00\x00\x10\x00"))
			stream += 2
		}
		c.write(b.String())
	}
	if n := <-read; n != 10*rounds {
		t.Errorf("%d answers came, want %d", n, 10*rounds)
	}
}

// TestServeHTTPRefusesAnHTTPServerThatClientsCanEnd.
func TestServeHTTPRefusesAnHTTPServerThatClientsCanEnd(t *testing.T) {
	for name, c := range map[string]struct {
		config *http.HTTP2Config
		safe   bool
	}{
		"by default":        {nil, false},
		"another setting":   {&http.HTTP2Config{MaxConcurrentStreams: 10}, false},
		"room for an entry": {&http.HTTP2Config{MaxEncoderHeaderTableSize: 32}, false},
		"no room":           {&http.HTTP2Config{MaxEncoderHeaderTableSize: 31}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, web := mounted(t, &service{}, false, nil)
			web.Config.HTTP2 = c.config
			s.over(1, nil).post("UnaryCall", "{}").want(t, 200, "{}")
			s.over(2, nil)
			for _, contentType := range []string{"application/json", "application/grpc"} {
				resp, err := s.client.Post(s.url+"UnaryCall", contentType, strings.NewReader(bodyFor(contentType)))
				if err == nil {
					_ = resp.Body.Close()
				}
				if c.safe != (err == nil) {
					t.Errorf("%s: %v", contentType, err)
				}
			}
			if said := logged.with("MaxEncoderHeaderTableSize: 1"); !c.safe && len(said) == 0 {
				t.Error("the log does not say why")
			}
		})
	}
}

// TestServeHTTPOpensNoWebSockets at whatever path: WebSockets carry calls of all services. The handler
// that opens them answers nothing else.
func TestServeHTTPOpensNoWebSockets(t *testing.T) {
	s, web := mounted(t, &service{}, false, nil)
	mux := web.Config.Handler.(*http.ServeMux)
	mux.Handle("/calls", s.server.WebSockets())
	s.over(1, nil)
	upgrade := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="}
	for _, p := range []string{path + "x", path + "UnaryCall", "/below/calls", "/below" + path} {
		s.do("GET", web.URL+p, "", upgrade...).want(t, 404, "WebSockets()")
	}
	s.do("GET", web.URL+"/calls", "").want(t, 426, "WebSocket")
	ws := func(p string) error {
		conn, err := nearcall.NewClient(strings.Replace(web.URL, "http", "ws", 1) + p)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err = testpb.NewTestServiceClient(conn).UnaryCall(ctx, &testpb.SimpleRequest{})
		return err
	}
	if err := ws("/calls"); err != nil {
		t.Error(err)
	}
	if err := ws(path); err == nil || !strings.Contains(err.Error(), "WebSockets()") {
		t.Errorf("%v", err)
	}
}
