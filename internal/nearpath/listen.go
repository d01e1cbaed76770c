package nearpath

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux"
	"github.com/nearcall/nearcall/internal/scmrights"
	"github.com/nearcall/nearcall/internal/sockopt"
	"github.com/nearcall/nearcall/internal/wire"
)

// named has the Offers of each name that this process offers.
var named sync.Map

// maxIntroductions is how many clients may be moving to shared memory at a time. Others wait in the
// queue of the socket, until they give up and stay on TCP.
const maxIntroductions = 64

// A Listener is what Offers need of the listener that makes them.
type Listener interface {
	// Go runs f on a goroutine. The listener waits for its end.
	Go(f func())

	// AddPending adds conn to the connections that are closed with the listener. It returns false if
	// the listener is closed. RemovePending takes conn back.
	AddPending(conn net.Conn) bool
	RemovePending(conn net.Conn)

	// Start starts a session over c.
	Start(c Accepted)
}

// An Accepted is a connection whose client speaks nearcall's protocol.
type Accepted struct {
	Conn     net.Conn
	Over     mux.Conn  // Conn, or the connection that has replaced it
	Peer     link.Peer // without the addresses, if they are Conn's
	First    []byte    // bytes that were already read
	Greeted  bool      // this side's HELLO was sent
	Deadline time.Time // for the client's HELLO
	Accept   func(link.Session) link.Acceptor
}

// Offers are the offers of a listener. The zero Offers can be used.
type Offers struct {
	mu        sync.Mutex
	lis       *net.UnixListener // nil before the first offer
	name      string
	limitsAge bool // of the listener's sessions
	withdrawn bool
	open      map[nonce]*offer
}

// An offer belongs to a TCP connection.
type offer struct {
	tcp    *net.TCPConn
	ends   ends
	peer   link.Peer
	accept func(link.Session) link.Acceptor
	taken  bool // guarded by Offers.mu
}

// Make makes the client of c an offer, if it asks for one, and waits until the client stays or
// moves. It returns false if the client has moved or left. tcp is the connection below c's, as
// [BareTCP] returns it. opts are those of the listener l. greet returns the HELLO with an offer. When
// it is called, the client has ended its handshake, so l may forget the pending connection.
func (s *Offers) Make(ctx context.Context, l Listener, opts Options, tcp *net.TCPConn, c *Accepted, greet func(offer string) []byte) (stays bool) {
	if h, n := helloOf(c.First); tcp == nil || n == 0 || n < len(c.First) || h.Features&wire.FeatureNear == 0 || opts.Upgrade == nil {
		return true
	}
	near, far := endsOf(tcp)
	if !onThisHost(near.Addr(), far.Addr()) {
		return true
	}
	peer := c.Peer
	peer.Addr, peer.LocalAddr = c.Conn.RemoteAddr(), c.Conn.LocalAddr()
	o := &offer{tcp: tcp, ends: ends{Client: far, Server: near, Namespace: sockopt.NamespaceOf(tcp)}, peer: peer, accept: c.Accept}
	_ = c.Conn.SetReadDeadline(time.Now().Add(min(time.Until(c.Deadline), staying)))
	n, err := s.add(ctx, l, opts, o)
	if err != nil {
		if !errors.Is(err, net.ErrClosed) {
			logger.Infof("no nearer path than TCP can be offered to %s: %q", sockopt.PeerName(tcp), err)
		}
		return true
	}
	defer s.remove(n)
	if _, err := c.Conn.Write(greet(string(n[:]) + s.name)); err != nil {
		return false
	}
	c.Greeted = true
	return s.waitFor(c, o)
}

// waitFor waits until c's client, to which o was offered, has sent something, and adds that to
// c.First. It returns false if the client has left, or has taken the offer and said so.
func (s *Offers) waitFor(c *Accepted, o *offer) (stays bool) {
	const kindAt = 2 // in a frame
	greeting := len(c.First)
	for {
		b := make([]byte, 512)
		n, err := c.Conn.Read(b)
		c.First = append(c.First, b[:n]...)
		said := c.First[greeting:]
		if len(said) > kindAt && wire.Kind(said[kindAt]) != wire.KindBye {
			return true
		}
		if _, n, wrong := wire.Next(said); n > 0 || wrong != nil {
			return wrong != nil || !s.isTaken(o)
		}
		if err != nil {
			return errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
}

// add adds an offer and returns its nonce. It opens the socket for introductions if it is not
// open yet.
func (s *Offers) add(ctx context.Context, l Listener, opts Options, o *offer) (nonce, error) {
	n := newNonce()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.withdrawn {
		return n, net.ErrClosed
	}
	if s.lis == nil {
		id := newNonce()
		name := namePrefix + hex.EncodeToString(id[:])
		config := net.ListenConfig{Control: scmrights.RefuseFrom}
		lis, err := config.Listen(ctx, "unix", "@"+name)
		if err != nil {
			return n, err
		}
		s.lis, s.name, s.open = lis.(*net.UnixListener), name, make(map[nonce]*offer)
		s.limitsAge = opts.Config.LimitsAge()
		named.Store(name, s)
		l.Go(func() { s.introductions(ctx, l, opts, s.lis) })
	}
	s.open[n] = o
	return n, nil
}

func (s *Offers) remove(n nonce) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, n)
}

func (s *Offers) isTaken(o *offer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return o.taken
}

// Withdraw takes the name back, makes no more offers, and ends the waits for clients that have
// one: their TCP connections are served.
func (s *Offers) Withdraw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.withdrawn = true
	for _, o := range s.open {
		_ = o.tcp.SetReadDeadline(time.Unix(1, 0))
	}
	if s.lis != nil {
		named.Delete(s.name)
		_ = s.lis.Close()
	}
}

// take returns the offer with this nonce, if the client sees the same ends of the TCP connection
// as this side. It can be taken once.
func (s *Offers) take(n nonce, client ends) (*offer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.open[n]
	switch {
	case o == nil || o.taken:
		return nil, errors.New("the nonce is of no open offer")
	case s.withdrawn:
		return nil, errors.New("the server is stopping")
	}
	delete(s.open, n)
	if o.ends != client {
		return nil, counters.Intercepted.New("something is between the two: the client sees the connection " + client.difference(o.ends))
	}
	o.taken = true
	return o, nil
}

// difference says how e differs from the server's view.
func (e ends) difference(server ends) string {
	if e.Client == server.Client && e.Server == server.Server {
		return "in another network namespace"
	}
	return fmt.Sprintf("%v to %v, the server %v to %v", e.Client, e.Server, server.Client, server.Server)
}

// openInProcess opens a session with a client of this process. peer is the server as the client
// sees it.
func (s *Offers) openInProcess(c Client, n nonce, e ends, peer link.Peer) (link.Session, error) {
	o, err := s.take(n, e)
	if err != nil {
		return nil, err
	}
	o.peer.Path = counters.InProcess
	return c.InProcess(c.Config, peer, o.peer, c.Accept, o.accept)
}

// introductions accepts clients of other processes that have got an offer.
func (s *Offers) introductions(ctx context.Context, l Listener, opts Options, lis *net.UnixListener) {
	free := make(chan struct{}, maxIntroductions)
	for {
		free <- struct{}{}
		u, err := lis.AcceptUnix()
		switch {
		case err == nil && opts.Upgrade.Trusts(u) == nil:
			l.Go(func() {
				defer func() { <-free }()
				s.introduced(ctx, l, opts, u)
			})
			continue
		case err == nil:
			_ = u.Close()
		case !sockopt.Temporary(err):
			return
		default: // usually out of descriptors; the clients stay on TCP meanwhile
			time.Sleep(5 * time.Millisecond)
		}
		<-free
	}
}

// introduced serves a client that has connected to the name.
func (s *Offers) introduced(ctx context.Context, l Listener, opts Options, u *net.UnixConn) {
	scmrights.Refuse(u)
	if !l.AddPending(u) {
		_ = u.Close()
		return
	}
	defer l.RemovePending(u)
	deadline := time.Now().Add(moving)
	_ = u.SetDeadline(deadline)
	n, e, err := readIntroduction(u)
	if err != nil {
		_ = u.Close()
		return
	}
	e.Namespace = sockopt.NamespaceOf(u)
	o, why := s.take(n, e)
	if why == nil {
		why = opts.turnedOff()
	}
	decline := ""
	if why != nil {
		decline = why.Error()
	}
	over, _, err := opts.Upgrade.Answer(ctx, u, nil, decline, false, deadline)
	if err != nil {
		counters.Stay(cmp.Or(why, err))
		logger.Infof("no shared memory with %s, which stays on TCP: %q", sockopt.PeerName(u), err)
		_ = u.Close()
		return
	}
	peer := o.peer
	peer.Path = counters.SharedMemory
	l.Start(Accepted{Conn: u, Over: over, Peer: peer, Deadline: deadline, Accept: o.accept})
}
