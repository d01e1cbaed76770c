package main

import (
	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/bench/internal/certificate"
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
	if network != tlsNetwork {
		return nil, nil
	}
	config, err := certificate.Server()
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(config), nil
}

// clientTLS returns the credentials of a network's clients, nil if it has none.
func clientTLS(network string) (credentials.TransportCredentials, error) {
	if network != tlsNetwork {
		return nil, nil
	}
	config, err := certificate.Client()
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(config), nil
}
