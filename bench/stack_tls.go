package main

import (
	"crypto/tls"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/bench/internal/certificate"
	_ "github.com/nearcall/nearcall/quic"
)

// tlsNetwork is TCP whose connections have TLS.
const tlsNetwork = "tcp+tls"

// socketNetwork returns package net's name of a network.
func socketNetwork(network string) string {
	if network == tlsNetwork {
		return "tcp"
	}
	return network
}

// serverTLS returns the credentials of a network's servers, nil if it has none.
func serverTLS(network string) (credentials.TransportCredentials, error) {
	return secured(network, certificate.Server)
}

// clientTLS returns the credentials of a network's clients, nil if it has none.
func clientTLS(network string) (credentials.TransportCredentials, error) {
	return secured(network, certificate.Client)
}

func secured(network string, configuration func() (*tls.Config, error)) (credentials.TransportCredentials, error) {
	creds := map[string]func(*tls.Config) credentials.TransportCredentials{tlsNetwork: credentials.NewTLS, quicNetwork: nearcall.NewTLS}[network]
	if creds == nil {
		return nil, nil
	}
	config, err := configuration()
	if err != nil {
		return nil, err
	}
	return creds(config), nil
}
