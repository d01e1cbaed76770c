package sock

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
	"github.com/nearcall/nearcall/internal/scmrights"
	"github.com/nearcall/nearcall/internal/wire"
)

// named has the Listener of each name that this process offers.
var named sync.Map

// maxIntroductions is how many clients may be moving to shared memory at a time. Others wait in the
// queue of the socket, until they give up and stay on TCP.
const maxIntroductions = 64

// nearOffers are the offers of a listener.
type nearOffers struct {
	mu        sync.Mutex
	lis       *net.UnixListener // nil before the first offer
	name      string
	withdrawn bool
	open      map[nonce]*nearOffer
}

// A nearOffer is an offer that belongs to a TCP connection.
type nearOffer struct {
	tcp    *net.TCPConn
	ends   ends
	peer   link.Peer
	accept func(link.Session) link.Acceptor
	taken  bool // guarded by nearOffers.mu
}

// offerNearer makes the client of c an offer, if it asks for one, and waits until the client stays
// or moves. It returns false if the client has moved or left. conn is the connection below c's.
func (l *Listener) offerNearer(ctx context.Context, conn net.Conn, c *ready) (stays bool) {
	tcp := l.Options.acceptedTCP(conn, c.conn)
	if h, n := helloOf(c.first); tcp == nil || n == 0 || n < len(c.first) || h.Features&wire.FeatureNear == 0 || !l.Near || l.Options.Upgrade == nil {
		return true
	}
	near, far := endsOf(tcp)
	if !onThisHost(near.Addr(), far.Addr()) {
		return true
	}
	peer := c.peer
	peer.Addr, peer.LocalAddr = c.conn.RemoteAddr(), c.conn.LocalAddr()
	o := &nearOffer{tcp: tcp, ends: ends{client: far, server: near, namespace: namespaceOf(tcp)}, peer: peer, accept: c.accept}
	_ = c.conn.SetReadDeadline(time.Now().Add(min(time.Until(c.deadline), staying)))
	n, err := l.add(ctx, o)
	if err != nil {
		if !errors.Is(err, net.ErrClosed) {
			logger.Infof("no nearer path than TCP can be offered to %s: %q", peerName(conn), err)
		}
		return true
	}
	defer l.near.remove(n)
	l.removePending(conn) // the client has ended its handshake
	if _, err := c.conn.Write(l.Options.serverMux(*c).Greeting(true, wire.FeatureNear, string(n[:])+l.near.name)); err != nil {
		return false
	}
	c.greeted = true
	return l.waitFor(c, o)
}

// waitFor waits until c's client, to which o was offered, has sent something, and adds that to
// c.first. It returns false if the client has left, or has taken the offer and said so.
func (l *Listener) waitFor(c *ready, o *nearOffer) (stays bool) {
	const kindAt = 2 // in a frame
	greeting := len(c.first)
	for {
		b := make([]byte, 512)
		n, err := c.conn.Read(b)
		c.first = append(c.first, b[:n]...)
		said := c.first[greeting:]
		if len(said) > kindAt && wire.Kind(said[kindAt]) != wire.KindBye {
			return true
		}
		if _, n, wrong := wire.Next(said); n > 0 || wrong != nil {
			return wrong != nil || !l.near.isTaken(o)
		}
		if err != nil {
			return errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
}

// add adds an offer and returns its nonce. It opens the socket for introductions if it is not
// open yet.
func (l *Listener) add(ctx context.Context, o *nearOffer) (nonce, error) {
	n := newNonce()
	s := &l.near
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
		s.lis, s.name, s.open = lis.(*net.UnixListener), name, make(map[nonce]*nearOffer)
		named.Store(name, l)
		l.all.Go(func() { l.introductions(ctx, s.lis) })
	}
	s.open[n] = o
	return n, nil
}

func (s *nearOffers) remove(n nonce) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, n)
}

func (s *nearOffers) isTaken(o *nearOffer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return o.taken
}

// withdraw takes the name back, makes no more offers, and ends the waits for clients that have
// one: their TCP connections are served.
func (s *nearOffers) withdraw() {
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
func (s *nearOffers) take(n nonce, client ends) (*nearOffer, error) {
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
	if e.client == server.client && e.server == server.server {
		return "in another network namespace"
	}
	return fmt.Sprintf("%v to %v, the server %v to %v", e.client, e.server, server.client, server.server)
}

// openInProcess opens a session with a client of this process. peer is the server as the client
// sees it.
func (l *Listener) openInProcess(d Dialer, n nonce, e ends, peer link.Peer) (link.Session, error) {
	o, err := l.near.take(n, e)
	if err != nil {
		return nil, err
	}
	o.peer.Path = counters.InProcess
	return d.Near(d.Options.Config, peer, o.peer, d.Accept, o.accept)
}

// introductions accepts clients of other processes that have got an offer.
func (l *Listener) introductions(ctx context.Context, lis *net.UnixListener) {
	free := make(chan struct{}, maxIntroductions)
	for {
		free <- struct{}{}
		u, err := lis.AcceptUnix()
		switch {
		case err == nil && l.Options.Upgrade.Trusts(u) == nil:
			l.all.Go(func() {
				defer func() { <-free }()
				l.introduced(ctx, u)
			})
			continue
		case err == nil:
			_ = u.Close()
		case !temporary(err):
			return
		default: // usually out of descriptors; the clients stay on TCP meanwhile
			time.Sleep(5 * time.Millisecond)
		}
		<-free
	}
}

// introduced serves a client that has connected to the name.
func (l *Listener) introduced(ctx context.Context, u *net.UnixConn) {
	scmrights.Refuse(u)
	if !l.addPending(u) {
		_ = u.Close()
		return
	}
	defer l.removePending(u)
	deadline := time.Now().Add(moving)
	_ = u.SetDeadline(deadline)
	n, e, err := readIntroduction(u)
	if err != nil {
		_ = u.Close()
		return
	}
	e.namespace = namespaceOf(u)
	o, why := l.near.take(n, e)
	if why == nil {
		why = l.Options.turnedOff()
	}
	decline := ""
	if why != nil {
		decline = why.Error()
	}
	over, _, err := l.Options.Upgrade.Answer(ctx, u, nil, decline, false, deadline)
	if err != nil {
		counters.Stay(cmp.Or(why, err))
		logger.Infof("no shared memory with %s, which stays on TCP: %q", peerName(u), err)
		_ = u.Close()
		return
	}
	peer := o.peer
	peer.Path = counters.SharedMemory
	l.Options.startSession(ready{conn: u, over: over, peer: peer, deadline: deadline, accept: o.accept})
}
