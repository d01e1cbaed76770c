package sock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
	"github.com/nearcall/nearcall/internal/transport/inproc"
	"github.com/nearcall/nearcall/internal/transport/shm"
	"github.com/nearcall/nearcall/internal/wire"
)

// sharedMemory is an upgrade to shared memory.
func sharedMemory() *Upgrade {
	memory := shm.NewMemory(1<<30, true)
	server := shm.NewServer(memory)
	return &Upgrade{
		Line: shm.Line, Network: "shm", Trusts: shm.SameUser,
		Offer: func(conn *net.UnixConn) (mux.Conn, []byte, error) {
			c, rest, err := shm.Offer(conn, memory)
			if err != nil {
				return nil, rest, err
			}
			return c, nil, nil
		},
		Answer: func(ctx context.Context, conn net.Conn, first []byte, decline string, required bool, deadline time.Time) (mux.Conn, []byte, error) {
			c, rest, err := server.Answer(ctx, conn, first, decline, required, deadline)
			if err != nil {
				return nil, rest, err
			}
			return c, nil, nil
		},
	}
}

// A nearServer is a listener that makes offers, and the sessions that it has accepted.
type nearServer struct {
	*Listener
	accepted chan link.Session
	ended    chan error
}

func serveNear(t *testing.T) *nearServer {
	return serveNearOn(t, func(l net.Listener) net.Listener { return l })
}

// serveNearOn is serveNear on what wrap makes of a TCP listener.
func serveNearOn(t *testing.T, wrap func(net.Listener) net.Listener) *nearServer {
	before := leak.Measure()
	t.Cleanup(func() { before.Check(t) })
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &nearServer{&Listener{Listener: wrap(inner), Options: Options{Config: serverOptions(), Upgrade: sharedMemory()}, Near: true}, make(chan link.Session, 100), make(chan error, 1)}
	go func() {
		s.ended <- s.Sessions(func(session link.Session) link.Acceptor {
			s.accepted <- session
			return make(transporttest.Accepter, 1)
		})
	}()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-s.ended; err != nil {
			t.Error(err)
		}
		for range len(s.accepted) {
			_ = (<-s.accepted).Close(net.ErrClosed)
		}
	})
	return s
}

// An asker is a client over TCP that has got an offer.
type asker struct {
	net.Conn
	nonce nonce
	name  string
	ends  ends
}

func (s *nearServer) ask(t *testing.T) *asker {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := conn.Write(mux.Options{Config: &clientOptions().Connections, Client: true}.Greeting(false, wire.FeatureNear, "")); err != nil {
		t.Fatal(err)
	}
	_, h := readHello(conn, nil)
	a := &asker{Conn: conn}
	ok := false
	if a.nonce, a.name, ok = offerOf(h.Near); !ok {
		t.Fatalf("the server's HELLO is %+v", h)
	}
	a.ends.client, a.ends.server = endsOf(conn.(*net.TCPConn))
	return a
}

// introduce connects to the name, says what and an offer of shared memory, and returns the answer.
func (a *asker) introduce(t *testing.T, what []byte) string {
	t.Helper()
	u, err := net.Dial("unix", "@"+a.name)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	_ = u.SetDeadline(time.Now().Add(time.Minute))
	if _, err := u.Write(append(what, shm.Line+"\x02\x01\x00"...)); err != nil && !errors.Is(err, syscall.EPIPE) { // the server may have closed it
		t.Fatal(err)
	}
	b, err := io.ReadAll(u)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
	return string(b)
}

func TestAnIntroductionMustFitItsOffer(t *testing.T) {
	s := serveNear(t)
	moved := func(a *asker) ends {
		e := a.ends
		e.client = netip.AddrPortFrom(e.client.Addr(), e.client.Port()+1)
		return e
	}
	for name, test := range map[string]struct {
		says func(a, other *asker) []byte
		want string
	}{
		"no nonce":       {func(a, _ *asker) []byte { return appendIntroduction(nil, nonce{}, a.ends) }, "of no open offer"},
		"a guess":        {func(a, _ *asker) []byte { return appendIntroduction(nil, newNonce(), a.ends) }, "of no open offer"},
		"of another":     {func(a, other *asker) []byte { return appendIntroduction(nil, other.nonce, a.ends) }, "something is between"},
		"another client": {func(a, _ *asker) []byte { return appendIntroduction(nil, a.nonce, moved(a)) }, "something is between"},
		"for the second time": {func(_, other *asker) []byte {
			_ = other.introduce(t, appendIntroduction(nil, other.nonce, moved(other)))
			return appendIntroduction(nil, other.nonce, other.ends)
		}, "of no open offer"}, // it was used, though wrongly
		"another protocol": {func(_, _ *asker) []byte { return []byte(strings.Repeat("GET / HTTP/1.1\r\n", 10)) }, ""},
		"shared memory":    {func(_, _ *asker) []byte { return []byte(strings.Repeat(shm.Line, 10)) }, ""},
		"after the TCP connection": {func(a, _ *asker) []byte {
			_ = a.Close()
			leak.Eventually(t, "the offer ends", func() bool {
				s.near.mu.Lock()
				defer s.near.mu.Unlock()
				return s.near.open[a.nonce] == nil
			})
			return appendIntroduction(nil, a.nonce, a.ends)
		}, "of no open offer"},
	} {
		t.Run(name, func(t *testing.T) {
			a := s.ask(t)
			got := a.introduce(t, test.says(a, s.ask(t)))
			if want := shm.Line + "-"; test.want != "" && (!strings.HasPrefix(got, want) || !strings.Contains(got, test.want)) || test.want == "" && got != "" {
				t.Errorf("the answer is %q, want %q", got, test.want)
			}
		})
	}
}

// A nonce takes its offer once, also if the second one comes while the first is served.
func TestANonceIsGoodOnce(t *testing.T) {
	s := serveNear(t)
	a := s.ask(t)
	e := a.ends
	e.namespace = namespaceOf(a.Conn.(*net.TCPConn))
	if _, err := s.near.take(a.nonce, e); err != nil {
		t.Fatal(err)
	}
	if _, err := s.near.take(a.nonce, e); err == nil {
		t.Error("it is good twice")
	}
	b := s.ask(t)
	e = b.ends
	e.namespace = namespaceOf(b.Conn.(*net.TCPConn)) + 1
	if _, err := s.near.take(b.nonce, e); err == nil || !strings.Contains(err.Error(), "another network namespace") {
		t.Errorf("from another network namespace: %v", err)
	}
}

// Peers that connect to the name and say nothing are cut off, and no more than a few are kept.
func TestSilentPeersOfTheNameAreBounded(t *testing.T) {
	s := serveNear(t)
	a := s.ask(t)
	silent := make([]net.Conn, 2*maxIntroductions)
	for i := range silent {
		u, err := net.Dial("unix", "@"+a.name)
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()
		silent[i] = u
	}
	for _, u := range silent {
		s.mu.Lock()
		n := len(s.pending)
		s.mu.Unlock()
		if n > maxIntroductions {
			t.Errorf("%d are kept", n)
		}
		_ = u.SetDeadline(time.Now().Add(time.Minute))
		if b, err := io.ReadAll(u); err != nil || len(b) > 0 {
			t.Errorf("the end is %q, %v", b, err)
		}
	}
}

// dialer returns a dialer that wants the nearer path to s.
func (s *nearServer) dialer() Dialer {
	client := clientOptions()
	return Dialer{
		Client: client, Target: "tcp:" + s.Addr().String(), Network: "tcp", Address: s.Addr().String(), Options: Options{Config: &client.Connections, Upgrade: sharedMemory()},
		Near: func(config *options.Connections, client, server link.Peer, dials, accepts func(link.Session) link.Acceptor) (link.Session, error) {
			return inproc.Connect("", inproc.Options{Config: config, Accept: dials, Client: &client, Server: &server}, accepts)
		},
	}
}

// Whatever is at the name that a server has offered, the client's session comes about, over TCP.
func TestASquatterOfTheNameGetsNothing(t *testing.T) {
	for name, squat := range map[string]func(net.Conn){
		"nobody": nil,
		"silent": func(u net.Conn) { _, _ = io.Copy(io.Discard, u) },
		"closes": func(net.Conn) {},
		"wrong":  func(u net.Conn) { _, _ = io.WriteString(u, strings.Repeat("nearcall/1 near\n", 100)) },
		"lies": func(u net.Conn) {
			_, _ = io.WriteString(u, shm.Line+"+\x04\x01\x00\x80\x20")
			_, _ = io.Copy(io.Discard, u)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveNear(t)
			_ = s.ask(t).Close() // after that the server has a name
			squatted := fmt.Sprintf("nearcall-%016x%016x", os.Getpid(), rand.Uint64())
			s.near.mu.Lock()
			named.Delete(s.near.name)
			s.near.name = squatted
			s.near.mu.Unlock()
			if squat != nil {
				lis, err := net.Listen("unix", "@"+squatted)
				if err != nil {
					t.Fatal(err)
				}
				ended := make(chan struct{})
				t.Cleanup(func() {
					_ = lis.Close()
					<-ended
				})
				go func() {
					defer close(ended)
					for {
						u, err := lis.Accept()
						if err != nil {
							return
						}
						squat(u)
						_ = u.Close()
					}
				}()
			}
			session, err := s.dialer().Dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			p := session.Peer()
			if p.Path != counters.TCP || p.NotNearer == "" || p.Addr.Network() != "tcp" {
				t.Errorf("the session goes by %q to %v: %q", p.Path, p.Addr, p.NotNearer)
			}
			if accepted := <-s.accepted; accepted.Peer().Path != counters.TCP || accepted.Peer().Addr.String() != p.LocalAddr.String() {
				t.Errorf("the server's session goes by %q to %v", accepted.Peer().Path, accepted.Peer().Addr)
			} else {
				_ = accepted.Close(net.ErrClosed)
			}
			_ = session.Close(net.ErrClosed)
		})
	}
}

// A client asks in its HELLO and says nothing more before it has the server's. If it has got an
// offer and stays, it says that first.
func TestAClientThatStaysSaysSo(t *testing.T) {
	for name, near := range map[string]string{
		"an offer": string(make([]byte, 16)) + "nearcall-" + strings.Repeat("0", 32), "an offer of another name": string(make([]byte, 16)) + "nobody", "no offer": "",
	} {
		t.Run(name, func(t *testing.T) {
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer lis.Close()
			s := nearServer{Listener: &Listener{Options: Options{Config: serverOptions()}, Listener: lis}}
			dialled := make(chan link.Session)
			go func() {
				session, err := s.dialer().Dial(t.Context())
				if err != nil {
					t.Error(err)
				}
				dialled <- session
			}()
			conn, err := lis.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			first, h := readHello(conn, nil)
			if _, n := helloOf(first); n != len(first) || h.Features&wire.FeatureNear == 0 {
				t.Errorf("the client's HELLO is %+v, of %d in %d bytes", h, n, len(first))
			}
			features := uint64(0)
			if near != "" {
				features = wire.FeatureNear
			}
			if _, err := conn.Write(mux.Options{Config: serverOptions()}.Greeting(true, features, near)); err != nil {
				t.Fatal(err)
			}
			session := <-dialled
			if session == nil {
				return
			}
			_ = session.Close(net.ErrClosed)
			b, err := io.ReadAll(conn)
			if stays := strings.HasPrefix(string(b), string(wire.AppendStay(nil))); err != nil || len(b) == 0 || stays != (near != "") {
				t.Errorf("the client says %q, %v", b, err)
			}
		})
	}
}

// A listener that retires serves the connections of clients that have an offer, and makes no more.
func TestARetiredListenerServesThoseWithAnOffer(t *testing.T) {
	s := serveNear(t)
	a := s.ask(t)
	if len(s.accepted) > 0 {
		t.Error("a session has begun before the client has decided")
	}
	s.Retire()
	session := <-s.accepted
	if got, want := session.Peer().Addr.String(), a.ends.client.String(); got != want {
		t.Errorf("the session is with %s, want %s", got, want)
	}
	if u, err := net.Dial("unix", "@"+a.name); err == nil {
		_ = u.Close()
		t.Error("the name is still taken")
	}
	_ = session.Close(net.ErrClosed)
}

// A closing listener calls a function when it is closed.
type closing struct {
	net.Listener
	first func()
}

func (c closing) Close() error {
	c.first()
	return c.Listener.Close()
}

// The name is taken back before the listener is closed: after that its address can be another's.
func TestTheNameIsTakenBackBeforeTheListenerCloses(t *testing.T) {
	for name, end := range map[string]func(*Listener){
		"Retire": (*Listener).Retire,
		"Close":  func(l *Listener) { _ = l.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			reached := make(chan error, 1)
			taken := ""
			s := serveNearOn(t, func(l net.Listener) net.Listener {
				return closing{l, func() {
					u, err := net.Dial("unix", "@"+taken)
					if err == nil {
						_ = u.Close()
					}
					reached <- err
				}}
			})
			taken = s.ask(t).name
			end(s.Listener)
			if err := <-reached; !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("when the listener is closed, the name answers with %v", err)
			}
		})
	}
}

// A client that says BYE after it has moved ends the connection, and no session begins. One that
// has not moved gets a session.
func TestOnlyAClientThatHasMovedLeavesUnseen(t *testing.T) {
	bye := wire.AppendBye(nil, wire.ByeDone, "")
	s := serveNear(t)
	a := s.ask(t)
	e := a.ends
	e.namespace = namespaceOf(a.Conn.(*net.TCPConn))
	if _, err := s.near.take(a.nonce, e); err != nil {
		t.Fatal(err)
	}
	for _, part := range [][]byte{bye[:1], bye[1:3], bye[3:]} {
		if _, err := a.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := io.ReadAll(a); len(b) > 0 || err != nil {
		t.Errorf("the server says %q, %v", b, err)
	}
	if len(s.accepted) > 0 {
		t.Error("a session has begun")
	}
	b := s.ask(t)
	if _, err := b.Write(bye); err != nil {
		t.Fatal(err)
	}
	_ = (<-s.accepted).Close(net.ErrClosed)
	if _, err := io.ReadAll(b); err != nil {
		t.Error(err)
	}
}

// A process of another user gets no answer, even if it knows a nonce.
func TestProcessesOfOtherUsersAreNotHeard(t *testing.T) {
	const introduction = "NEAR_INTRODUCTION"
	if what := os.Getenv(introduction); what != "" {
		if err := syscall.Setuid(1234); err != nil {
			t.Fatal(err)
		}
		name, says, _ := strings.Cut(what, " ")
		var b []byte
		if _, err := fmt.Sscanf(says, "%x", &b); err != nil {
			t.Fatal(err)
		}
		a := asker{name: name}
		if answer := a.introduce(t, b); answer != "" {
			t.Errorf("the answer is %q", answer)
		}
		return
	}
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	s := serveNear(t)
	a := s.ask(t)
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %x", introduction, a.name, appendIntroduction(nil, a.nonce, a.ends)))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if answer := a.introduce(t, appendIntroduction(nil, a.nonce, a.ends)); !strings.HasPrefix(answer, shm.Line+"+") {
		t.Errorf("the nonce was used up: %q", answer)
	}
}

// A client says nothing to a process of another user that answers at the name.
func TestASquatterOfAnotherUserHearsNothing(t *testing.T) {
	const squat = "NEAR_SQUAT"
	if name := os.Getenv(squat); name != "" {
		if err := syscall.Setuid(1234); err != nil {
			t.Fatal(err)
		}
		lis, err := net.Listen("unix", "@"+name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("listening")
		u, err := lis.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(u); len(b) > 0 || err != nil {
			t.Errorf("a client says %q, %v", b, err)
		}
		return
	}
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	s := serveNear(t)
	_ = s.ask(t).Close()
	squatted := fmt.Sprintf("nearcall-%016x%016x", os.Getpid(), rand.Uint64())
	s.near.mu.Lock()
	named.Delete(s.near.name)
	s.near.name = squatted
	s.near.mu.Unlock()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), squat+"="+squatted)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(out)
	for line := ""; line != "listening\n"; {
		if line, err = said.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	session, err := s.dialer().Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if why := session.Peer().NotNearer; !strings.Contains(why, "process of user 1234") {
		t.Errorf("the reason is %q", why)
	}
	_ = session.Close(net.ErrClosed)
	rest, _ := io.ReadAll(said)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, rest)
	}
}

func TestOnlyAddressesOfThisHostAreOnIt(t *testing.T) {
	for near, far := range map[string]map[string]bool{
		"127.0.0.1": {"127.0.0.1": true, "127.0.0.9": true},
		"::1":       {"::1": true},
		"192.0.2.1": {"192.0.2.1": true, "198.51.100.7": false, "2001:db8::1": false},
		"fe80::1%1": {"fe80::1%1": false},
	} {
		for far, want := range far {
			if got := onThisHost(netip.MustParseAddr(near), netip.MustParseAddr(far)); got != want {
				t.Errorf("%s to %s: %v, want %v", near, far, got, want)
			}
		}
	}
	if onThisHost(netip.Addr{}, netip.Addr{}) {
		t.Error("no address is on this host")
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		own, _ := netip.AddrFromSlice(a.(*net.IPNet).IP)
		if own = own.Unmap(); !own.IsLinkLocalUnicast() && !onThisHost(netip.MustParseAddr("127.0.0.1"), own) {
			t.Errorf("%v is not on this host", own)
		}
	}
}

// What introduces a client is parsed as it was written, or not at all.
func FuzzIntroduction(f *testing.F) {
	e := ends{client: netip.MustParseAddrPort("127.0.0.1:1234"), server: netip.MustParseAddrPort("[2001:db8::1]:65535")}
	f.Add(appendIntroduction(nil, newNonce(), e))
	f.Add([]byte(introductionLine))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, e, err := parseIntroduction(b)
		if err != nil {
			if !errors.Is(err, wire.ErrProtocol) {
				t.Error(err)
			}
			return
		}
		again, same, err := parseIntroduction(appendIntroduction(nil, n, e))
		if err != nil || again != n || same != e {
			t.Errorf("%v %v became %v %v, %v", n, e, again, same, err)
		}
	})
}

// What a client or a server says first never makes the other side read beyond it or fail.
func FuzzGreeting(f *testing.F) {
	f.Add(mux.Options{Config: serverOptions()}.Greeting(true, wire.FeatureNear, string(make([]byte, 16))+"name"))
	f.Add(mux.Options{Config: &clientOptions().Connections, Client: true}.Greeting(false, 0, ""))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n := helloOf(b)
		if n > len(b) || n == 0 && h != (wire.Hello{}) {
			t.Errorf("%d of %d bytes are %+v", n, len(b), h)
		}
		if n, name, ok := offerOf(h.Near); ok && string(n[:])+name != h.Near {
			t.Errorf("%q became %x and %q", h.Near, n, name)
		}
	})
}

// A server can name only sockets of nearcall's, not those of other programs of the client's user.
func TestAServerCannotNameSocketsOfOtherPrograms(t *testing.T) {
	id := strings.Repeat("0af9", 8)
	for _, name := range []string{
		"", "victim-of-the-same-user", "nearcall-", "nearcall-" + id[1:], "nearcall-" + id + "0", "nearcall-" + strings.ToUpper(id),
		"nearcall-" + id[1:] + "/", "nearcall-" + id[1:] + "\x00", "Nearcall-" + id, " nearcall-" + id, id,
	} {
		if _, _, ok := offerOf(strings.Repeat("n", 16) + name); ok {
			t.Errorf("the client would connect to %q", name)
		}
	}
	if n, name, ok := offerOf(strings.Repeat("n", 16) + "nearcall-" + id); !ok || name != "nearcall-"+id || string(n[:]) != strings.Repeat("n", 16) {
		t.Errorf("the offer is %q, %q, %t", n, name, ok)
	}

	before := leak.Measure()
	defer before.Check(t)
	victim, err := net.Listen("unix", "@victim-"+id+fmt.Sprint(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer victim.Close()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	go func() {
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = readHello(conn, nil)
		_, _ = conn.Write(mux.Options{Config: serverOptions()}.Greeting(true, wire.FeatureNear, strings.Repeat("n", 16)+victim.Addr().String()[1:]))
		_, _ = io.Copy(io.Discard, conn)
	}()
	rogue := nearServer{Listener: &Listener{Options: Options{Config: serverOptions()}, Listener: lis}}
	s, err := rogue.dialer().Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p := s.Peer(); p.Path != counters.TCP || p.NotNearer != errForeignName.Error() {
		t.Errorf("the path is %q, because of %q", p.Path, p.NotNearer)
	}
	// The session is there, so the client has decided. Only the test's own connection may be in the queue.
	own, err := net.Dial("unix", victim.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = own.Close()
	conn, err := victim.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(conn); len(b) > 0 || err != nil {
		t.Errorf("the client has connected to another program's socket: %q, %v", b, err)
	}
	_ = conn.Close()
	_ = s.Close(net.ErrClosed)
	<-s.Ended()
}
