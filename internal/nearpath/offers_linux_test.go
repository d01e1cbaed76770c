package nearpath_test

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
	"github.com/nearcall/nearcall/internal/nearpath"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/sockopt"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
	"github.com/nearcall/nearcall/internal/transport/inproc"
	"github.com/nearcall/nearcall/internal/transport/shm"
	"github.com/nearcall/nearcall/internal/transport/sock"
	"github.com/nearcall/nearcall/internal/wire"
)

// sharedMemory is an upgrade to shared memory.
func sharedMemory() *nearpath.Upgrade {
	memory := shm.NewMemory(1<<30, true)
	server := shm.NewServer(memory)
	return &nearpath.Upgrade{
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
	*sock.Listener
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
	s := &nearServer{&sock.Listener{Listener: wrap(inner), Options: sock.Options{Options: nearpath.Options{Config: &options.NewServer(nil).Connections, Upgrade: sharedMemory()}}, Near: true}, make(chan link.Session, 100), make(chan error, 1)}
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
	nonce nearpath.Nonce
	name  string
	ends  nearpath.Ends
}

func (s *nearServer) ask(t *testing.T) *asker {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := conn.Write(mux.Options{Config: &options.NewClient(nil).Connections, Client: true}.Greeting(false, wire.FeatureNear, "")); err != nil {
		t.Fatal(err)
	}
	_, h := nearpath.ReadHello(conn, nil)
	a := &asker{Conn: conn}
	ok := false
	if a.nonce, a.name, ok = nearpath.OfferOf(h.Near); !ok {
		t.Fatalf("the server's HELLO is %+v", h)
	}
	a.ends.Client, a.ends.Server = nearpath.EndsOf(conn.(*net.TCPConn))
	return a
}

// squat makes s offer a name that is not its own, and returns that name.
func (s *nearServer) squat(t *testing.T) string {
	t.Helper()
	a := s.ask(t) // after that the server has a name
	_ = a.Close()
	name := fmt.Sprintf("nearcall-%016x%016x", os.Getpid(), rand.Uint64())
	nearpath.OffersOf(a.name).Rename(name)
	return name
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
	moved := func(a *asker) nearpath.Ends {
		e := a.ends
		e.Client = netip.AddrPortFrom(e.Client.Addr(), e.Client.Port()+1)
		return e
	}
	for name, test := range map[string]struct {
		says func(a, other *asker) []byte
		want string
	}{
		"no nonce":       {func(a, _ *asker) []byte { return nearpath.AppendIntroduction(nil, nearpath.Nonce{}, a.ends) }, "of no open offer"},
		"a guess":        {func(a, _ *asker) []byte { return nearpath.AppendIntroduction(nil, nearpath.NewNonce(), a.ends) }, "of no open offer"},
		"of another":     {func(a, other *asker) []byte { return nearpath.AppendIntroduction(nil, other.nonce, a.ends) }, "something is between"},
		"another client": {func(a, _ *asker) []byte { return nearpath.AppendIntroduction(nil, a.nonce, moved(a)) }, "something is between"},
		"for the second time": {func(_, other *asker) []byte {
			_ = other.introduce(t, nearpath.AppendIntroduction(nil, other.nonce, moved(other)))
			return nearpath.AppendIntroduction(nil, other.nonce, other.ends)
		}, "of no open offer"}, // it was used, though wrongly
		"another protocol": {func(_, _ *asker) []byte { return []byte(strings.Repeat("GET / HTTP/1.1\r\n", 10)) }, ""},
		"shared memory":    {func(_, _ *asker) []byte { return []byte(strings.Repeat(shm.Line, 10)) }, ""},
		"after the TCP connection": {func(a, _ *asker) []byte {
			_ = a.Close()
			leak.Eventually(t, "the offer ends", func() bool {
				return !nearpath.OffersOf(a.name).Has(a.nonce)
			})
			return nearpath.AppendIntroduction(nil, a.nonce, a.ends)
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
	e.Namespace = sockopt.NamespaceOf(a.Conn.(*net.TCPConn))
	if err := nearpath.OffersOf(a.name).Take(a.nonce, e); err != nil {
		t.Fatal(err)
	}
	if err := nearpath.OffersOf(a.name).Take(a.nonce, e); err == nil {
		t.Error("it is good twice")
	}
	b := s.ask(t)
	e = b.ends
	e.Namespace = sockopt.NamespaceOf(b.Conn.(*net.TCPConn)) + 1
	if err := nearpath.OffersOf(b.name).Take(b.nonce, e); err == nil || !strings.Contains(err.Error(), "another network namespace") {
		t.Errorf("from another network namespace: %v", err)
	}
}

// Peers that connect to the name and say nothing are cut off, and no more than a few are kept.
func TestSilentPeersOfTheNameAreBounded(t *testing.T) {
	s := serveNear(t)
	a := s.ask(t)
	silent := make([]net.Conn, 2*nearpath.MaxIntroductions)
	for i := range silent {
		u, err := net.Dial("unix", "@"+a.name)
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()
		silent[i] = u
	}
	kept := func() (n int) {
		for _, stack := range leak.Find() {
			if strings.Contains(stack, "/nearpath.(*Offers).introduced(") {
				n++
			}
		}
		return n
	}
	leak.Eventually(t, "the first of them are kept", func() bool { return kept() > 0 })
	for _, u := range silent {
		if n := kept(); n > nearpath.MaxIntroductions {
			t.Errorf("%d are kept", n)
		}
		_ = u.SetDeadline(time.Now().Add(time.Minute))
		if b, err := io.ReadAll(u); err != nil || len(b) > 0 {
			t.Errorf("the end is %q, %v", b, err)
		}
	}
}

// dialer returns a dialer that wants the nearer path to s.
func (s *nearServer) dialer() sock.Dialer {
	client := options.NewClient(nil)
	return sock.Dialer{
		Client: client, Target: "tcp:" + s.Addr().String(), Network: "tcp", Address: s.Addr().String(), Options: sock.Options{Options: nearpath.Options{Config: &client.Connections, Upgrade: sharedMemory()}},
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
			squatted := s.squat(t)
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
	for name, offer := range map[string]string{
		"an offer": string(make([]byte, 16)) + "nearcall-" + strings.Repeat("0", 32), "an offer of another name": string(make([]byte, 16)) + "nobody", "no offer": "",
	} {
		t.Run(name, func(t *testing.T) {
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer lis.Close()
			s := nearServer{Listener: &sock.Listener{Options: sock.Options{Options: nearpath.Options{Config: &options.NewServer(nil).Connections}}, Listener: lis}}
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
			first, h := nearpath.ReadHello(conn, nil)
			if _, n := nearpath.HelloOf(first); n != len(first) || h.Features&wire.FeatureNear == 0 {
				t.Errorf("the client's HELLO is %+v, of %d in %d bytes", h, n, len(first))
			}
			features := uint64(0)
			if offer != "" {
				features = wire.FeatureNear
			}
			if _, err := conn.Write(mux.Options{Config: &options.NewServer(nil).Connections}.Greeting(true, features, offer)); err != nil {
				t.Fatal(err)
			}
			session := <-dialled
			if session == nil {
				return
			}
			_ = session.Close(net.ErrClosed)
			b, err := io.ReadAll(conn)
			if stays := strings.HasPrefix(string(b), string(wire.AppendStay(nil))); err != nil || len(b) == 0 || stays != (offer != "") {
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
	if got, want := session.Peer().Addr.String(), a.ends.Client.String(); got != want {
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
	for name, end := range map[string]func(*sock.Listener){
		"Retire": (*sock.Listener).Retire,
		"Close":  func(l *sock.Listener) { _ = l.Close() },
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
	e.Namespace = sockopt.NamespaceOf(a.Conn.(*net.TCPConn))
	if err := nearpath.OffersOf(a.name).Take(a.nonce, e); err != nil {
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
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %x", introduction, a.name, nearpath.AppendIntroduction(nil, a.nonce, a.ends)))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if answer := a.introduce(t, nearpath.AppendIntroduction(nil, a.nonce, a.ends)); !strings.HasPrefix(answer, shm.Line+"+") {
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
	squatted := s.squat(t)
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

// A server can name only sockets of nearcall's, not those of other programs of the client's user.
func TestAServerCannotNameSocketsOfOtherPrograms(t *testing.T) {
	id := strings.Repeat("0af9", 8)
	for _, name := range []string{
		"", "victim-of-the-same-user", "nearcall-", "nearcall-" + id[1:], "nearcall-" + id + "0", "nearcall-" + strings.ToUpper(id),
		"nearcall-" + id[1:] + "/", "nearcall-" + id[1:] + "\x00", "Nearcall-" + id, " nearcall-" + id, id,
	} {
		if _, _, ok := nearpath.OfferOf(strings.Repeat("n", 16) + name); ok {
			t.Errorf("the client would connect to %q", name)
		}
	}
	if n, name, ok := nearpath.OfferOf(strings.Repeat("n", 16) + "nearcall-" + id); !ok || name != "nearcall-"+id || string(n[:]) != strings.Repeat("n", 16) {
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
		_, _ = nearpath.ReadHello(conn, nil)
		_, _ = conn.Write(mux.Options{Config: &options.NewServer(nil).Connections}.Greeting(true, wire.FeatureNear, strings.Repeat("n", 16)+victim.Addr().String()[1:]))
		_, _ = io.Copy(io.Discard, conn)
	}()
	rogue := nearServer{Listener: &sock.Listener{Options: sock.Options{Options: nearpath.Options{Config: &options.NewServer(nil).Connections}}, Listener: lis}}
	s, err := rogue.dialer().Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p := s.Peer(); p.Path != counters.TCP || p.NotNearer != nearpath.ErrForeignName.Error() {
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
