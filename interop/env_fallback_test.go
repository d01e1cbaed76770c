package interop

import (
	"google.golang.org/grpc"

	"github.com/nearcall/nearcall"
)

// fallbackDiffers are the cases in which a call differs that grpc-go makes for nearcall.
var fallbackDiffers = map[string]string{
	"content subtypes of odd characters":                           "grpc-go gets them in lower case and in valid UTF-8",
	"SetSendCompressor":                                            "stats handlers are not told how replies are compressed",
	"details that a handler sets itself":                           "details are passed on as part of the status, not of the trailer",
	"compressors that fail":                                        "the failure is the status of the call, not the error of SendMsg",
	"freed by Close when its end has arrived but was not received": "grpc-go drops what was not received",
	"the client's Close meets calls in every state":                "grpc-go drops what was not received",
}

// startFallback connects a nearcall client to a server of grpc-go.
func startFallback(cfg *Config) (*Link, error) {
	addressed := *cfg
	addressed.Addressed = !cfg.Private // a target that nearcall can dial
	p, err := newGRPCPath(&addressed)
	if err != nil {
		return nil, err
	}
	srv := grpc.NewServer(append(grpcServerOptions(cfg), grpc.Creds(p.creds))...)
	for _, r := range cfg.Register {
		r(srv)
	}
	target := "tcp:" + p.target
	if cfg.Private {
		target = p.target
	}
	conn, err := nearcall.NewClient(target, nearcallDialOptions(cfg)...)
	if err != nil {
		p.close()
		return nil, err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		srv.Serve(p.lis)
	}()
	return &Link{Conn: conn, Close: conn.Close, GracefulStop: srv.GracefulStop, Stop: func() {
		srv.Stop()
		p.close()
		<-served
	}}, nil
}
