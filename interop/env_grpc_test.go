package interop

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/credentials/local"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
)

// startGRPC connects through grpc-go.
func startGRPC(cfg *Config) (*Link, error) {
	p, err := newGRPCPath(cfg)
	if err != nil {
		return nil, err
	}
	srv := grpc.NewServer(append(grpcServerOptions(cfg), grpc.Creds(p.creds))...)
	for _, r := range cfg.Register {
		r(srv)
	}
	return p.connect(srv)
}

// startFace connects a client of grpc-go to a nearcall server.
func startFace(cfg *Config) (*Link, error) {
	p, err := newGRPCPath(cfg)
	if err != nil {
		return nil, err
	}
	srv, _ := nearcallServer(cfg)
	return p.connect(srv)
}

// startSecureFace is startFace with TLS.
func startSecureFace(cfg *Config) (*Link, error) {
	secure := *cfg
	var client credentials.TransportCredentials
	client, secure.ServerCreds = selfSigned()
	p, err := newGRPCPath(&secure)
	if err != nil {
		return nil, err
	}
	p.creds = client
	srv, _ := nearcallServer(&secure)
	return p.connect(srv)
}

// startConnFace connects a client of grpc-go to a nearcall server that serves each connection with
// ServeConn.
func startConnFace(cfg *Config) (*Link, error) {
	p, err := newGRPCPath(cfg)
	if err != nil {
		return nil, err
	}
	srv, _ := nearcallServer(cfg)
	return p.connect(connServer{srv})
}

// A connServer serves the connections of a listener with ServeConn.
type connServer struct{ *nearcall.Server }

func (s connServer) Serve(lis net.Listener) error {
	var served sync.WaitGroup
	defer served.Wait()
	for {
		conn, err := lis.Accept()
		if err != nil {
			return err
		}
		served.Go(func() { _ = s.ServeConn(conn) })
	}
}

// behindHTTP connects a client of grpc-go to an HTTP server that passes requests to the server that
// newServer returns.
func behindHTTP(newServer func(*Config) handler) func(*Config) (*Link, error) {
	return func(cfg *Config) (*Link, error) {
		open := *cfg
		open.Private = false // which a unix socket is not for ServeHTTP
		p, err := newGRPCPath(&open)
		if err != nil {
			return nil, err
		}
		site := &http.Server{Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxEncoderHeaderTableSize: 1}, ErrorLog: log.New(io.Discard, "", 0)}
		site.Protocols.SetUnencryptedHTTP2(true)
		if cfg.Private {
			var client *tls.Config
			client, site.TLSConfig = selfSignedTLS()
			site.TLSConfig = site.TLSConfig.Clone() // ServeTLS adds to it
			p.creds = credentials.NewTLS(client)
			site.Protocols.SetHTTP2(true)
		}
		h := newServer(cfg)
		site.Handler = h
		return p.connect(httpServer{h, site})
	}
}

// httpOracle is grpc-go's ServeHTTP, for environments whose calls arrive by that method.
var httpOracle = Env{Name: "grpc-go's ServeHTTP", Start: behindHTTP(func(cfg *Config) handler {
	srv := grpc.NewServer(grpcServerOptions(cfg)...)
	for _, r := range cfg.Register {
		r(srv)
	}
	return srv
})}

func nearcallHandler(cfg *Config) handler {
	srv, _ := nearcallServer(cfg)
	return srv
}

// A handler is a *grpc.Server or a *nearcall.Server.
type handler interface {
	server
	http.Handler
}

// An httpServer serves a handler.
type httpServer struct {
	handler
	site *http.Server
}

func (s httpServer) Serve(lis net.Listener) error {
	if s.site.TLSConfig != nil {
		return s.site.ServeTLS(lis, "", "")
	}
	return s.site.Serve(lis)
}

func (s httpServer) Stop() {
	s.handler.Stop()
	_ = s.site.Close()
}

func (s httpServer) GracefulStop() {
	s.handler.GracefulStop()
	_ = s.site.Shutdown(context.Background())
}

// A grpcPath is a way between a client of grpc-go and a server.
type grpcPath struct {
	lis    net.Listener
	target string
	creds  credentials.TransportCredentials
	dial   []grpc.DialOption
	dir    string // of the socket file; empty if there is none
}

func newGRPCPath(cfg *Config) (*grpcPath, error) {
	p := &grpcPath{creds: insecure.NewCredentials(), target: "passthrough:///bufnet", dial: grpcDialOptions(cfg)}
	var err error
	switch {
	case cfg.Private:
		p.creds = local.NewCredentials()
		if p.dir, err = os.MkdirTemp("", "interop"); err != nil {
			return nil, err
		}
		path := filepath.Join(p.dir, "s")
		p.target = "unix://" + path
		p.lis, err = net.Listen("unix", path)
	case cfg.Addressed:
		if p.lis, err = net.Listen("tcp", "127.0.0.1:0"); err == nil {
			p.target = p.lis.Addr().String()
		}
	default:
		buf := bufconn.Listen(1 << 20)
		p.lis = buf
		p.dial = append(p.dial, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := buf.DialContext(ctx)
			if cfg.Silence != nil {
				return silentConn{c, cfg.Silence}, err
			}
			return c, err
		}))
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *grpcPath) close() {
	if p.lis != nil {
		p.lis.Close()
	}
	if p.dir != "" {
		os.RemoveAll(p.dir)
	}
}

// A server is a *grpc.Server or a *nearcall.Server.
type server interface {
	Serve(net.Listener) error
	Stop()
	GracefulStop()
}

// connect serves the path with srv and connects to it.
func (p *grpcPath) connect(srv server) (*Link, error) {
	conn, err := grpc.NewClient(p.target, append(p.dial, grpc.WithTransportCredentials(p.creds))...)
	if err != nil {
		p.close()
		return nil, err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		srv.Serve(p.lis)
	}()
	return &Link{
		Conn:         conn,
		Close:        conn.Close,
		GracefulStop: srv.GracefulStop,
		Stop: func() {
			srv.Stop()
			p.close()
			<-served
		},
	}, nil
}

func grpcServerOptions(cfg *Config) []grpc.ServerOption {
	opts := []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(cfg.UnaryServer...),
		grpc.ChainStreamInterceptor(cfg.StreamServer...),
	}
	for _, h := range cfg.ServerStats {
		opts = append(opts, grpc.StatsHandler(h))
	}
	if cfg.ServerTap != nil {
		opts = append(opts, grpc.InTapHandle(cfg.ServerTap))
	}
	if cfg.ServerMaxRecv != 0 {
		opts = append(opts, grpc.MaxRecvMsgSize(cfg.ServerMaxRecv))
	}
	if cfg.ServerMaxSend != 0 {
		opts = append(opts, grpc.MaxSendMsgSize(cfg.ServerMaxSend))
	}
	if cfg.ServerEnds != (keepalive.ServerParameters{}) {
		opts = append(opts, grpc.KeepaliveParams(cfg.ServerEnds))
	}
	if cfg.ServerCodec != nil {
		opts = append(opts, grpc.ForceServerCodecV2(cfg.ServerCodec))
	}
	if cfg.Unknown != nil {
		opts = append(opts, grpc.UnknownServiceHandler(cfg.Unknown))
	}
	return opts
}

func grpcDialOptions(cfg *Config) []grpc.DialOption {
	opts := []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(cfg.UnaryClient...),
		grpc.WithChainStreamInterceptor(cfg.StreamClient...),
		grpc.WithDefaultCallOptions(cfg.CallOptions...),
	}
	for _, h := range cfg.ClientStats {
		opts = append(opts, grpc.WithStatsHandler(h))
	}
	for _, p := range cfg.PerRPC {
		opts = append(opts, grpc.WithPerRPCCredentials(p))
	}
	if cfg.UserAgent != "" {
		opts = append(opts, grpc.WithUserAgent(cfg.UserAgent))
	}
	if cfg.Authority != "" {
		opts = append(opts, grpc.WithAuthority(cfg.Authority))
	}
	if cfg.ServiceConfig != "" {
		opts = append(opts, grpc.WithDefaultServiceConfig(cfg.ServiceConfig))
	}
	if cfg.DisableRetry {
		opts = append(opts, grpc.WithDisableRetry())
	}
	if cfg.MaxCallAttempts != nil {
		opts = append(opts, grpc.WithMaxCallAttempts(*cfg.MaxCallAttempts))
	}
	return opts
}
