package quic

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	q "github.com/quic-go/quic-go"

	"github.com/nearcall/nearcall/internal/lifecycle"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/registry"
)

// A dialer implements [link.Dialer].
type dialer struct {
	target, address string
	tls             *tls.Config
	config          *q.Config
	settings        *registry.Settings

	// listen opens the socket of a connection. Tests replace it.
	listen func() (net.PacketConn, error)
}

func newDialer(target, rest string, s *registry.Settings) (link.Dialer, error) {
	d := &dialer{target: target, address: rest, tls: secured(s.TLS), config: clientConfig(s), settings: s, listen: func() (net.PacketConn, error) { return openSocket(":0") }}
	d.tls.ServerName = cmp.Or(d.tls.ServerName, link.HostOf(s.Authority))
	d.config.TokenStore = q.NewLRUTokenStore(1, 4)
	return d, nil
}

// Dial implements [link.Dialer]. It tries the addresses of the host one after the other.
func (d *dialer) Dial(ctx context.Context) (link.Session, error) {
	addresses, err := d.resolve(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.target, err)
	}
	var first error
	for i, a := range addresses {
		s, err := d.dialOne(ctx, a, len(addresses)-i)
		if err == nil {
			return s, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, fmt.Errorf("%s: %w", d.target, first)
}

// resolve returns the addresses of the target, at least one.
func (d *dialer) resolve(ctx context.Context) ([]*net.UDPAddr, error) {
	host, service, err := net.SplitHostPort(d.address)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "udp", service)
	if err != nil {
		return nil, err
	}
	ips := []netip.Addr{}
	if ip, err := netip.ParseAddr(host); err == nil {
		ips = append(ips, ip)
	} else if ips, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil {
		return nil, err
	}
	all := make([]*net.UDPAddr, len(ips))
	for i, ip := range ips {
		all[i] = net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	return all, nil
}

// dialOne connects to one address. left is the number of addresses that were not tried yet,
// including this one. They share the remaining time equally.
func (d *dialer) dialOne(ctx context.Context, to *net.UDPAddr, left int) (link.Session, error) {
	if deadline, ok := ctx.Deadline(); ok && left > 1 {
		share, cancel := context.WithTimeout(ctx, time.Until(deadline)/time.Duration(left))
		defer cancel()
		ctx = share
	}
	pc, err := d.listen()
	if err != nil {
		return nil, err
	}
	reportUnreachable(pc, true)
	tr := &q.Transport{Conn: pc}
	config, asked := withCertificate(d.tls)
	conn, err := tr.Dial(ctx, to, config, d.config)
	reportUnreachable(pc, false)
	closeSocket := func() {
		_ = tr.Close()
		_ = pc.Close()
	}
	if err != nil {
		closeSocket()
		return nil, explain(err)
	}
	s := newSession(conn, sessionOptions{
		name: d.target, client: true, config: d.settings.Config,
		handshake: handshake, gone: closeSocket, silence: silenceOf(d.config), limits: lifecycle.Limits{Patience: closeTimeout},
	})
	var acceptor link.Acceptor
	if d.settings.Accept != nil {
		acceptor = d.settings.Accept(s)
	}
	s.start(acceptor)
	if asked.Load() {
		// A server that refuses the certificate says so after the client's handshake is complete.
		if err := s.meet(ctx); err != nil {
			_ = s.Close(err)
			return nil, err
		}
	}
	return s, nil
}

// withCertificate returns a copy of c, and a flag that is set when the server asks for the
// client's certificate.
func withCertificate(c *tls.Config) (*tls.Config, *atomic.Bool) {
	asked := new(atomic.Bool)
	own, all := c.GetClientCertificate, c.Certificates
	c = c.Clone()
	c.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		asked.Store(true)
		if own != nil {
			return own(info)
		}
		for i := range all {
			if info.SupportsCertificate(&all[i]) == nil {
				return &all[i], nil
			}
		}
		return new(tls.Certificate), nil // none
	}
	return c, asked
}

// explain adds to err an explanation for users.
func explain(err error) error {
	switch t, ok := errors.AsType[*q.TransportError](err); {
	case ok && t.ErrorCode.IsCryptoError():
		return fmt.Errorf("authentication handshake failed: %w", err)
	case ok && t.ErrorCode == q.ConnectionRefused:
		return fmt.Errorf("the server takes no new connections: %w", err)
	}
	if _, ok := errors.AsType[*q.IdleTimeoutError](err); ok {
		return fmt.Errorf("no server answers: %w", err)
	}
	return err
}
