package nearcall

import (
	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/transport/http1"
)

// WebOrigins lets web pages of other origins make calls. An origin is scheme://host or
// scheme://host:port, as in "https://shop.example" or "http://localhost:5173". "*" stands for all
// origins. With "*", browsers send cookies only when they open a WebSocket, and handlers do not
// get those cookies: see [WebSocketRequest]. Without the option a page can make calls only to the
// host that it comes from. WebOrigins panics if an origin has another form.
//
// It has no effect on clients that are not browsers: any program can send any Origin.
//
// If browsers reach the server by a name, through a proxy on the same machine that connects over
// the loopback interface, WebOrigins must list the origin with that name as well: see
// https://github.com/nearcall/nearcall/blob/main/docs/security.md#web-pages.
func WebOrigins(origins ...string) ServerOption {
	if err := http1.CheckOrigins(origins); err != nil {
		panic("nearcall: WebOrigins: " + err.Error())
	}
	return options.SetServer(func(o *options.Server) { o.PageOrigins = append(o.PageOrigins, origins...) })
}

// webServer returns the server for HTTP clients.
func (s *Server) webServer() *http1.Server {
	web := http1.Options{
		Config: s.opts, Sockets: s.sockets, Method: s.core.Method, Codec: s.core.HasCodec, Compressors: call.Compressors, Begin: s.begin,
	}
	if s.opts.TakesGRPC {
		web.GRPC = s.serveGRPC
	}
	return http1.New(web)
}
