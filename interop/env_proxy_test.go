package interop

import (
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/proxy"
)

const recompressed = "the proxy decompresses messages, and compresses them again"

// proxyDiffers are the cases in which a proxy is noticed.
var proxyDiffers = map[string]string{
	"PreparedMsg is compressed once":           recompressed,
	"replies are compressed with what was set": recompressed,
}

// proxyFaceDiffers are those with a client of grpc-go.
var proxyFaceDiffers = map[string]string{
	"limits count what is compressed":                        recompressed,
	"limits count what becomes larger when it is compressed": recompressed,
	"PreparedMsg is compressed once":                         recompressed,
	"too large once it is decompressed":                      recompressed,
	"SetSendCompressor":                                      recompressed + ", with what the client's requests have",
	"content subtypes of odd characters":                     "the proxy gets them in lower case and in valid UTF-8",
	"events of the connection":                               "clients of grpc-go share the proxy's connection, which stays",
}

// proxied connects a nearcall client to a nearcall server on target's scheme, through a proxy
// that listens on TCP.
func proxied(scheme string) func(*Config) (*Link, error) {
	return func(cfg *Config) (*Link, error) {
		listen := "tcp:127.0.0.1:0"
		if cfg.Private {
			listen = "unix:" + filepath.Join(os.TempDir(), fmt.Sprintf("nearcall-%d-%d", os.Getpid(), number.Add(1)))
		}
		p, lis, srv, err := startProxy(cfg, scheme, listen)
		if err != nil {
			return nil, err
		}
		conn, err := nearcall.NewClient(lis.Target(), nearcallDialOptions(cfg)...)
		if err != nil {
			p.Stop()
			srv.Stop()
			return nil, err
		}
		return &Link{Conn: conn, Close: conn.Close, GracefulStop: srv.GracefulStop, Stop: func() {
			srv.Stop()
			p.Stop()
		}}, nil
	}
}

// startProxy serves cfg's services on a target of scheme, and a proxy to it on listen.
func startProxy(cfg *Config, scheme, listen string) (*proxy.Proxy, nearcall.Listener, *nearcall.Server, error) {
	target := "tcp:127.0.0.1:0"
	if scheme != "tcp" {
		target = scheme + ":" + filepath.Join(os.TempDir(), fmt.Sprintf("nearcall-%d-%d", os.Getpid(), number.Add(1)))
	}
	behind, err := nearcall.Listen(target)
	if err != nil {
		return nil, nil, nil, err
	}
	srv, _ := nearcallServer(cfg)
	p, err := proxy.New(behind.Target(), nil)
	if err != nil {
		behind.Close()
		return nil, nil, nil, err
	}
	lis, err := nearcall.Listen(listen)
	if err != nil {
		behind.Close()
		return nil, nil, nil, err
	}
	go srv.Serve(behind)
	go func(lis net.Listener) { _ = p.Serve(lis) }(lis)
	return p, lis, srv, nil
}

// proxiedFace connects a client of grpc-go to a nearcall server, through a proxy.
func proxiedFace(cfg *Config) (*Link, error) {
	path, err := newGRPCPath(cfg)
	if err != nil {
		return nil, err
	}
	p, lis, srv, err := startProxy(cfg, "shm", "tcp:127.0.0.1:0")
	if err != nil {
		path.close()
		return nil, err
	}
	_ = lis.Close()
	link, err := path.connect(proxyServer{p, srv})
	return link, err
}

// proxyServer is a proxy with the server behind it.
type proxyServer struct {
	*proxy.Proxy
	behind *nearcall.Server
}

func (s proxyServer) GracefulStop() { s.behind.GracefulStop() }

func (s proxyServer) Stop() {
	s.behind.Stop()
	s.Proxy.Stop()
}
