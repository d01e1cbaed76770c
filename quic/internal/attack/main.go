//go:build linux

// Command attack measures what attacks over QUIC cost a nearcall server and what they cost the
// attacker. It takes the flags of package github.com/nearcall/nearcall/internal/testing/attack.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"slices"
	"time"

	q "github.com/quic-go/quic-go"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/attack"
	_ "github.com/nearcall/nearcall/quic"
)

const overQUIC attack.Path = "quic"

func main() { program().Main() }

func program() *attack.Program {
	return &attack.Program{
		Attacks:  slices.Concat(connectionAttacks, callAttacks, blockAttacks),
		Table:    "attacks-quic",
		Listen:   func(string) map[attack.Path]string { return map[attack.Path]string{overQUIC: "quic:127.0.0.1:0"} },
		Server:   []nearcall.ServerOption{nearcall.Creds(nearcall.NewTLS(&tls.Config{Certificates: []tls.Certificate{certificate()}}))},
		Client:   []nearcall.DialOption{nearcall.WithTransportCredentials(nearcall.NewTLS(&tls.Config{InsecureSkipVerify: true}))},
		Forget:   30 * time.Second, // the idle timeout
		Probe:    probe,
		Declines: declines,
	}
}

// certificate returns a new certificate, which nobody verifies.
func certificate() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// declines reports whether err says that the server has ended the connection or a call, or is slow.
func declines(err error) bool {
	_, app := errors.AsType[*q.ApplicationError](err)
	_, transport := errors.AsType[*q.TransportError](err)
	_, stream := errors.AsType[*q.StreamError](err)
	_, idle := errors.AsType[*q.IdleTimeoutError](err)
	return app || transport || stream || idle
}
