package main

import (
	"embed"
	"io/fs"
	"net/http"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/board/boardpb"
)

// The page. make web-pages builds board.js from web/board.
//
//go:embed assets
var assets embed.FS

// newSite returns an HTTP server for the page and the service. nearcall's clients open WebSockets
// at /calls. Clients of Connect, gRPC-Web and gRPC call the service at the paths of its methods.
func newSite(srv *nearcall.Server) (*http.Server, error) {
	files, err := fs.Sub(assets, "assets")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServerFS(files))
	mux.Handle("/calls", srv.WebSockets())
	mux.Handle("/"+pb.Board_ServiceDesc.ServiceName+"/", srv)
	site := &http.Server{Handler: mux, Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxEncoderHeaderTableSize: 1}} // see ServeHTTP
	site.Protocols.SetHTTP1(true)
	site.Protocols.SetUnencryptedHTTP2(true) // for gRPC
	return site, nil
}
