package main

import (
	"context"
	"net"
	"net/http"

	"connectrpc.com/connect/v2/connecthttp"
)

// connectOptions turn compression off, and allow all rows' messages, as elsewhere.
var connectOptions = []connecthttp.Option{connecthttp.WithCompressors(), connecthttp.WithReadMaxBytes(maxMessage)}

// connectMux serves with Connect's handlers over HTTP.
func connectMux(s Services) http.Handler {
	mux := http.NewServeMux()
	connecthttp.Mount(mux, connectServer(s), connectOptions...)
	return mux
}

// overHTTP returns Connect's stack over one version of HTTP without TLS, which version chooses.
func overHTTP(version func(*http.Protocols, bool)) stack {
	protocols := new(http.Protocols)
	version(protocols, true)
	return stack{
		serve: func(network, address string, s Services) (string, func(), error) {
			return serveOn(network, address, func(lis net.Listener) (run, stop func()) {
				srv := &http.Server{Handler: connectMux(s), Protocols: protocols}
				return func() { _ = srv.Serve(lis) }, func() { _ = srv.Close() }
			})
		},
		dial: func(network, address string, row Row) (Conn, error) {
			transport := &http.Transport{
				Protocols: protocols,
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, network, address)
				},
				MaxIdleConnsPerHost: max(row.Callers, 1), // or most callers would dial for each call of HTTP/1.1
			}
			return connectConn(connecthttp.NewTransport(&http.Client{Transport: transport}, "http://bench", connectOptions...), transport.CloseIdleConnections), nil
		},
	}
}
