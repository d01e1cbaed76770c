// Package certificate has the TLS configurations of measurements between two processes. Both
// processes make the same certificate from a constant key, so that neither has to send it.
package certificate

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"sync"
	"time"
)

// host is the name in the certificate. Clients check it whatever address they dial.
const host = "bench.test"

// made is the certificate. Everything in it is constant, and ed25519 signatures are, too.
var made = sync.OnceValues(func() (tls.Certificate, error) {
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		DNSNames:              []string{host},
		NotBefore:             time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:              time.Date(2120, 1, 1, 0, 0, 0, 0, time.UTC),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(nil, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
})

// Server returns the configuration of servers.
func Server() (*tls.Config, error) {
	c, err := made()
	return &tls.Config{Certificates: []tls.Certificate{c}}, err
}

// Client returns the configuration of clients. They trust only the certificate of Server.
func Client() (*tls.Config, error) {
	c, err := made()
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(c.Leaf)
	return &tls.Config{RootCAs: roots, ServerName: host}, nil
}
