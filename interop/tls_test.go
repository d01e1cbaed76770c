package interop

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// selfSigned returns credentials of a server, and of clients that accept any certificate.
func selfSigned() (client, server credentials.TransportCredentials) {
	c, s := selfSignedTLS()
	return credentials.NewTLS(c), credentials.NewTLS(s)
}

// selfSignedTLS returns the configurations of selfSigned. The server's certificate has the
// authorities that cases set for calls.
var selfSignedTLS = sync.OnceValues(func() (client, server *tls.Config) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"call.example"}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return &tls.Config{InsecureSkipVerify: true},
		&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: key}}}
})
