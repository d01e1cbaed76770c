package interop

import (
	"context"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/credentials/local"
	"google.golang.org/grpc/test/bufconn"
)

// startGRPC connects through grpc-go.
func startGRPC(cfg *Config) (*Link, error) {
	creds := insecure.NewCredentials()
	var lis net.Listener
	target := "passthrough:///bufnet"
	dial := grpcDialOptions(cfg)
	dir := ""
	switch {
	case cfg.Private:
		creds = local.NewCredentials()
		var err error
		if dir, err = os.MkdirTemp("", "interop"); err != nil {
			return nil, err
		}
		path := filepath.Join(dir, "s")
		if lis, err = net.Listen("unix", path); err != nil {
			return nil, err
		}
		target = "unix://" + path
	case cfg.Addressed:
		var err error
		if lis, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return nil, err
		}
		target = lis.Addr().String()
	default:
		buf := bufconn.Listen(1 << 20)
		lis = buf
		dial = append(dial, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return buf.DialContext(ctx)
		}))
	}
	srv := grpc.NewServer(append(grpcServerOptions(cfg), grpc.Creds(creds))...)
	for _, r := range cfg.Register {
		r(srv)
	}
	conn, err := grpc.NewClient(target, append(dial, grpc.WithTransportCredentials(creds))...)
	if err != nil {
		lis.Close()
		os.RemoveAll(dir)
		return nil, err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		srv.Serve(lis)
	}()
	return &Link{
		Conn:         conn,
		Close:        conn.Close,
		GracefulStop: srv.GracefulStop,
		Stop: func() {
			srv.Stop()
			lis.Close()
			<-served
			if dir != "" {
				os.RemoveAll(dir)
			}
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
	if cfg.ServerMaxRecv != 0 {
		opts = append(opts, grpc.MaxRecvMsgSize(cfg.ServerMaxRecv))
	}
	if cfg.ServerMaxSend != 0 {
		opts = append(opts, grpc.MaxSendMsgSize(cfg.ServerMaxSend))
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
