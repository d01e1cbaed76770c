package main

import (
	"context"
	"embed"
	"io/fs"
	"net"
	"net/http"
	"net/http/httputil"

	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/board/boardpb"
)

// The page. `make web` builds board.js from web/board.
//
//go:embed assets
var assets embed.FS

// newHandler returns a handler that serves the page and the service: over WebSockets at /calls
// and, for comparison, over HTTP to Connect clients. A reverse proxy passes the requests of
// Connect clients on to a listener of the server. A program without web pages would listen on the
// port with the server instead. stop closes the connections to the listener.
func newHandler(srv *nearcall.Server) (h http.Handler, stop func(), err error) {
	files, err := fs.Sub(assets, "assets")
	if err != nil {
		return nil, nil, err
	}
	within := bufconn.Listen(64 << 10)
	go func() { _ = srv.Serve(within) }()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return within.DialContext(ctx) }
	calls := &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 64}
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServerFS(files))
	mux.Handle("/calls", srv)
	mux.Handle("/"+pb.Board_ServiceDesc.ServiceName+"/", &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", r.In.Host
			r.Out.Host = r.In.Host // the server compares it with the Origin
		},
		Transport: calls,
	})
	return mux, calls.CloseIdleConnections, nil
}
