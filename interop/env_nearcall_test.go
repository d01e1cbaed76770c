package interop

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/forward"
	"github.com/nearcall/nearcall/internal/testing/looptest"
	_ "github.com/nearcall/nearcall/quic"
)

// nearcallEnvironments are the paths under test, one per line.
var nearcallEnvironments = near(slices.Concat([]Env{
	{Name: "inproc", Start: inproc()},
	{Name: "inproc-background", Background: true, Start: inproc()},
	{Name: "inproc-inline", Waits: true, Start: inproc(nearcall.HandlerPlacement(nearcall.Inline))},
	{Name: "inproc-workers", Background: true, Start: inproc(nearcall.HandlerPlacement(nearcall.Workers))},
	{Name: "inproc-name", Start: inprocName},
	{Name: "unix", Start: overPath("unix", nearcall.WithDisableSharedMemory())},
	{Name: "tcp", Start: overTCP(false)},
	{Name: "tls", Start: overTCP(true), Differs: tlsDiffers},
	{Name: "ws", Start: overWebSocket(false)},
	{Name: "wss", Start: overWebSocket(true), Differs: tlsDiffers},
	{Name: "ws-handler", Start: overServeHTTP},
	{Name: "conn", Start: overConn},
	{Name: "quic", Start: overQUIC, Differs: tlsDiffers},
	{Name: "quic-loop", Start: onLoop(looptest.Baton, overQUIC), Differs: tlsDiffers},
	{Name: "inproc-loop", Start: onLoop(looptest.Baton, inproc())},
	{Name: "inproc-loop-background", Background: true, Start: onLoop(looptest.Baton, inproc())},
	{Name: "tcp-loop", Start: onLoop(looptest.Baton, overTCP(false))},
	{Name: "inproc-coroutines", Waits: true, Start: onLoop(looptest.Coroutines, inproc())},
	{Name: "inproc-coroutines-background", Background: true, Hands: true, Start: onLoop(looptest.Coroutines, inproc())},
	{Name: "tcp-coroutines", Start: onLoop(looptest.Coroutines, overTCP(false))},
	{Name: "inproc-pinned", Start: onLoop(looptest.Pinned, inproc())},
	{Name: "inproc-hosted", Start: onLoop(looptest.Hosted, inproc())},
	{Name: "tcp-hosted", Start: onLoop(looptest.Hosted, overTCP(false))},
	{Name: "inproc-forward", Start: forwarded(inproc()), Differs: forwardDiffers},
	{Name: "tcp-forward", Start: forwarded(overTCP(false)), Differs: forwardDiffers},
	{Name: "inproc-grpc-conn", Start: throughGRPC(inproc())},
	{Name: "tcp-grpc-conn", Start: throughGRPC(overTCP(false))},
	{Name: "grpc-client", Start: startFace},
	{Name: "grpc-client-tls", Start: startSecureFace, Differs: tlsDiffers},
	{Name: "grpc-client-loop", Start: onLoop(looptest.Baton, startFace), Differs: loopDiffers},
	{Name: "grpc-client-conn", Start: startConnFace},
	{Name: "grpc-client-http", Start: behindHTTP(nearcallHandler), Oracle: &httpOracle, Differs: httpDiffers},
	{Name: "fallback", Start: startFallback, Differs: fallbackDiffers},
	{Name: "proxy", Start: proxied("unix"), Differs: proxyDiffers},
	{Name: "inproc-peer", Start: peerOver("inproc"), Differs: peerDiffers},
	{Name: "tcp-peer", Start: peerOver("tcp"), Differs: tcpPeerDiffers},
	{Name: "unix-peer", Start: peerOver("unix", nearcall.WithDisableSharedMemory()), Differs: peerDiffers},
	{Name: "grpc-client-forward", Start: forwarded(startFace), Differs: forwardDiffers},
}, sharedMemory()))

// near sets Near for environments within the process.
func near(envs []Env) []Env {
	for i := range envs {
		envs[i].Near = strings.HasPrefix(envs[i].Name, "inproc")
	}
	return envs
}

// httpDiffers are the cases that wait for long if calls arrive by ServeHTTP, or end in several ways.
var httpDiffers = map[string]string{
	"methods of odd characters":                                                "package http closes the connection, and who learns why is a race",
	"content subtypes of odd characters":                                       "package http closes the connection, and who learns why is a race",
	"authorities of odd characters":                                            "package http closes the connection, and who learns why is a race",
	"services and methods that are registered with odd characters":             "package http closes the connection, and who learns why is a race",
	"odd characters and the unknown service handler":                           "package http closes the connection, and who learns why is a race",
	"an authority of odd characters that all calls have":                       "package http closes the connection, and who learns why is a race",
	"who is told of a method with control characters":                          "package http closes the connection, and who learns why is a race",
	"a cancellation in the middle of a stream":                                 "grpc-go learns of the end from the request's context or from its body, which is a race",
	"calls with control characters and a policy that retries Internal":         "package http closes the connection, and who learns why is a race",
	"a unary request to a server that does not wait for it":                    "package http sends the header and the end apart, and the client may send in between",
	"by Header, where the end comes without one":                               "package http sends a header with each end, so there is no such end",
	"a sender notices, beside a receiver":                                      "package http sends a header with each end, which commits the call to its attempt",
	"a deadline of the service config is for all attempts":                     "package http sends a header with each end, which commits the call to its attempt",
	"a deadline in the backoff":                                                "package http sends a header with each end, which commits the call to its attempt",
	"an age with a grace meets calls in every state":                           "the age of a connection is the HTTP server's",
	"keepalive meets calls in every state":                                     "keepalive is the HTTP server's",
	"the deadline ends what a handler waits for, even if its caller is silent": "in grpc-go's ServeHTTP a handler that sends waits for its client to receive",
	"SendMsg after the server ended":                                           "package http closes the connection of a client that sends thousands of frames after the end",
	"Stop meets calls in every state":                                          "calls that Stop cancels end with Unavailable, and without a status with grpc-go's ServeHTTP",
	"the handler's calls after a cancellation":                                 "what is sent after the end of a call is Unavailable",
	"the handler's calls after the deadline":                                   "what is sent after the end of a call is Unavailable",
	"a tap handle":                                                             "grpc-go's ServeHTTP asks none",
}

// loopDiffers are the cases in which a handler on a loop calls with a client of grpc-go,
// which blocks the loop.
var loopDiffers = map[string]string{
	"a second hop": "its handler waits for another handler of its loop, without yielding it",
	"a client's error passed on by a handler": "its handler waits for another handler of its loop, without yielding it",
}

// tlsDiffers are the cases whose calls no certificate allows.
var tlsDiffers = map[string]string{
	"authorities of odd characters": "no certificate has such names",
}

// forwardDiffers are the cases in which a *grpc.Server behaves differently if calls arrive
// by ServeHTTP.
var forwardDiffers = map[string]string{
	"illegal headers from the handler": "net/http's names have no case: Upper is upper",

	"a cancellation in the middle of a stream": "grpc-go learns of the end from the request's context or from its body, which is a race",
	"the handler's calls after a cancellation": "what is sent after the end of a call is Unavailable",
	"the handler's calls after the deadline":   "what is sent after the end of a call is Unavailable",
	"a handler that sends until it fails":      "what is sent after the end of a call is Unavailable",
	"a stream after a message was too large":   "what is sent after the end of a call is Unavailable",

	"headers and trailers of a unary call":            "a header may be sent again, and is not",
	"what a stream handler and its interceptors find": "a header may be sent again, and is not",
	"outside a handler, and after it":                 "a trailer may be set after the end, and is not sent",

	"limits of the server":              "the error of a message that was announced has another text",
	"the default limits, at their edge": "the error of a message that was announced has another text",

	"unary calls":                         "stats handlers are not told of the header",
	"streams":                             "stats handlers are not told of the header, and are of announcements",
	"streams that send headers, or fail":  "stats handlers are told of announcements",
	"two handlers on each side":           "stats handlers are not told of the header",
	"unknown service and unknown handler": "stats handlers are told of announcements",
	"a cancelled stream":                  "stats handlers are told of announcements",

	"replies whose compressors fail":                         "what is sent after the end of a call is Unavailable",
	"too large once it is decompressed":                      "the call is made twice, and each has compression of its own",
	"limits count what is compressed":                        "the call is made twice, and each has compression of its own",
	"limits count what becomes larger when it is compressed": "the call is made twice, and each has compression of its own",
	"SetSendCompressor":                                      "the call is made twice, and each has compression and stats of its own",
	"replies are compressed with what was set":               "the call is made twice, and each has compression of its own",
	"SetSendCompressor of a call that is over":               "streams of ServeHTTP have a state of their own",
	"AcceptCompressors":                                      "the call is made twice, and each has compression of its own",
	"PreparedMsg is compressed once":                         "the call is made twice, and each has compression of its own",
	"PreparedMsg of clients":                                 "stats handlers are told of other headers",
	"PreparedMsg and limits":                                 "the error of a message that was announced has another text",
	"package authz allows and denies":                        "ServeHTTP has no connection, which authz wants",
	"the connection that package authz finds":                "ServeHTTP has no connection, which authz wants",
}

// forwarded runs all handlers on a *grpc.Server, to which a nearcall server forwards the
// calls.
func forwarded(start func(*Config) (*Link, error)) func(*Config) (*Link, error) {
	return func(cfg *Config) (*Link, error) {
		there := grpc.NewServer(grpcServerOptions(cfg)...)
		for _, r := range cfg.Register {
			r(there)
		}
		here := *cfg
		here.Forward = there
		here.Register, here.UnaryServer, here.StreamServer, here.ServerStats = nil, nil, nil, nil
		here.ServerCodec, here.Unknown, here.ServerMaxRecv, here.ServerMaxSend = nil, nil, math.MaxInt32, 0
		link, err := start(&here)
		if err != nil {
			return nil, err
		}
		stop, graceful := link.Stop, link.GracefulStop
		link.Stop = func() {
			stop()
			there.Stop()
		}
		link.GracefulStop = func() {
			graceful()
			there.GracefulStop()
		}
		return link, nil
	}
}

// throughGRPC makes calls through the connection's *grpc.ClientConn, and closes that.
func throughGRPC(start func(*Config) (*Link, error)) func(*Config) (*Link, error) {
	return func(cfg *Config) (*Link, error) {
		link, err := start(cfg)
		if err != nil {
			return nil, err
		}
		conn := link.Conn.(*nearcall.ClientConn).GRPC()
		link.Conn, link.Close = conn, conn.Close
		return link, nil
	}
}

// onLoop runs all handlers on a loop.
func onLoop(kind looptest.Kind, start func(*Config) (*Link, error)) func(*Config) (*Link, error) {
	return func(cfg *Config) (*Link, error) {
		on := *cfg
		l, end := kind.New()
		on.Loop = l
		link, err := start(&on)
		if err != nil {
			return nil, err
		}
		stop, once := link.Stop, sync.Once{}
		link.Stop = func() {
			stop()
			once.Do(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				if err := end(ctx); err != nil {
					panic(fmt.Sprintf("the loop is not closed: %v", err))
				}
			})
		}
		return link, nil
	}
}

// sharedMemory are the paths through shared memory, if the system has it: one that requires
// it, and one that upgrades a unix socket.
func sharedMemory() []Env {
	if runtime.GOOS != "linux" {
		return nil
	}
	return []Env{
		{Name: "shm", Start: overPath("shm")},
		{Name: "proxy-grpc-client", Start: proxiedFace, Differs: proxyFaceDiffers},
		{Name: "shm-peer", Start: peerOver("shm"), Differs: peerDiffers},
		{Name: "shm-loop", Start: onLoop(looptest.Baton, overPath("shm"))},
		{Name: "unix+shm", Start: overPath("unix")},
	}
}

// overPath connects through a unix socket, or through shared memory that is set up over
// one.
func overPath(scheme string, more ...nearcall.DialOption) func(cfg *Config) (*Link, error) {
	return func(cfg *Config) (*Link, error) {
		path := filepath.Join(os.TempDir(), fmt.Sprintf("nearcall-%d-%d", os.Getpid(), number.Add(1)))
		lis, err := nearcall.Listen(scheme + ":" + path)
		if err != nil {
			return nil, err
		}
		return serve(cfg, lis, lis.Target(), more...)
	}
}

// overTCP connects through TCP, with TLS if secure is set or the connection must be
// private.
func overTCP(secure bool) func(cfg *Config) (*Link, error) {
	return func(cfg *Config) (*Link, error) {
		lis, err := nearcall.Listen("tcp:127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		if !secure && !cfg.Private {
			return serve(cfg, lis, lis.Target())
		}
		client, server := selfSigned()
		secured := *cfg
		secured.ServerCreds = server
		return serve(&secured, lis, lis.Target(), nearcall.WithTransportCredentials(client))
	}
}

// A pieces passes bytes on in pieces of random sizes, some of them late.
type pieces struct{ net.Conn }

func (p pieces) Read(b []byte) (int, error) {
	if rand.IntN(20) == 0 {
		time.Sleep(50 * time.Microsecond)
	}
	return p.Conn.Read(b[:min(len(b), 1+rand.IntN(8000))])
}

// overConn connects through a net.Pipe whose other end ServeConn serves, with TLS if the connection
// must be private. Both ends read in pieces.
func overConn(cfg *Config) (*Link, error) {
	with := *cfg
	var more []nearcall.DialOption
	if cfg.Private {
		client, server := selfSigned()
		with.ServerCreds = server
		more = append(more, nearcall.WithTransportCredentials(client))
	}
	srv, dial := nearcallServer(&with)
	var served sync.WaitGroup
	dial = append(dial, nearcall.WithContextDialer(func(context.Context, string) (net.Conn, error) {
		near, far := net.Pipe()
		served.Go(func() { _ = srv.ServeConn(pieces{far}) })
		if cfg.Silence != nil {
			near = silentConn{near, cfg.Silence}
		}
		return pieces{near}, nil
	}))
	conn, err := nearcall.NewClient("tcp:localhost:1", append(dial, more...)...)
	if err != nil {
		return nil, err
	}
	return &Link{Conn: conn, Close: conn.Close, GracefulStop: srv.GracefulStop, Stop: func() {
		srv.Stop()
		served.Wait()
	}}, nil
}

// overQUIC connects through QUIC.
func overQUIC(cfg *Config) (*Link, error) {
	lis, err := nearcall.Listen("quic:127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	client, server := selfSignedTLS()
	secured := *cfg
	secured.ServerCreds = nearcall.NewTLS(server)
	target, end := lis.Target(), func() {}
	if cfg.Silence != nil {
		target, end = relay(lis.Addr().String(), cfg.Silence)
		secured.Silence = nil // QUIC takes no connections from a dialer
	}
	link, err := serve(&secured, lis, target, nearcall.WithTransportCredentials(nearcall.NewTLS(client)))
	if err != nil {
		end()
		return nil, err
	}
	stop := link.Stop
	link.Stop = func() {
		stop()
		end()
	}
	return link, nil
}

// relay passes the packets of one client to a server and back, and drops the client's while silence
// is set.
func relay(server string, silence *atomic.Bool) (target string, end func()) {
	front, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	back, err := net.Dial("udp", server)
	if err != nil {
		panic(err)
	}
	go func() {
		b := make([]byte, 64<<10)
		n, client, err := front.ReadFrom(b)
		go func() {
			b := make([]byte, 64<<10)
			for {
				n, err := back.Read(b)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				_, _ = front.WriteTo(b[:n], client)
			}
		}()
		for ; err == nil; n, _, err = front.ReadFrom(b) {
			if !silence.Load() {
				_, _ = back.Write(b[:n])
			}
		}
	}()
	return "quic:" + front.LocalAddr().String(), func() { _, _ = front.Close(), back.Close() }
}

// overWebSocket connects through WebSocket, with TLS if secure is set or the connection must
// be private.
func overWebSocket(secure bool) func(cfg *Config) (*Link, error) {
	return func(cfg *Config) (*Link, error) {
		target, with := "ws://127.0.0.1:0/calls", *cfg
		var more []nearcall.DialOption
		if secure || cfg.Private {
			target = "wss://127.0.0.1:0/calls"
			client, server := selfSignedTLS()
			with.ServerCreds = nearcall.NewTLS(server)
			more = append(more, nearcall.WithTransportCredentials(nearcall.NewTLS(client)))
		}
		lis, err := nearcall.Listen(target)
		if err != nil {
			return nil, err
		}
		return serve(&with, lis, lis.Target(), more...)
	}
}

// overServeHTTP connects through WebSocket with an HTTP server of the program's own, with
// TLS if the connection must be private.
func overServeHTTP(cfg *Config) (*Link, error) {
	srv, dial := nearcallServer(cfg)
	there := httptest.NewUnstartedServer(srv.WebSockets())
	client, server := selfSignedTLS()
	there.TLS = server
	if cfg.Private {
		there.StartTLS()
		dial = append(dial, nearcall.WithTransportCredentials(nearcall.NewTLS(client)))
	} else {
		there.Start()
	}
	conn, err := nearcall.NewClient(strings.Replace(there.URL, "http", "ws", 1), dial...)
	if err != nil {
		there.Close()
		return nil, err
	}
	return &Link{Conn: conn, Close: conn.Close, GracefulStop: srv.GracefulStop, Stop: func() {
		srv.Stop()
		there.Close()
	}}, nil
}

// inproc connects with Server.Client.
func inproc(more ...nearcall.ServerOption) func(cfg *Config) (*Link, error) {
	return func(cfg *Config) (*Link, error) {
		srv, dial := nearcallServer(cfg, more...)
		conn := srv.Client(dial...)
		return &Link{Conn: conn, Close: conn.Close, Stop: srv.Stop, GracefulStop: srv.GracefulStop}, nil
	}
}

// number counts, for unique names and seeds.
var number atomic.Int64

// inprocName connects with a name.
func inprocName(cfg *Config) (*Link, error) {
	lis, err := nearcall.Listen(fmt.Sprintf("inproc:interop-%d", number.Add(1)))
	if err != nil {
		return nil, err
	}
	return serve(cfg, lis, lis.Target())
}

// serve serves lis and connects to target.
func serve(cfg *Config, lis net.Listener, target string, more ...nearcall.DialOption) (*Link, error) {
	srv, dial := nearcallServer(cfg)
	conn, err := nearcall.NewClient(target, append(dial, more...)...)
	if err != nil {
		lis.Close()
		return nil, err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		srv.Serve(lis)
	}()
	return &Link{Conn: conn, Close: conn.Close, GracefulStop: srv.GracefulStop, Stop: func() {
		srv.Stop()
		lis.Close()
		<-served
	}}, nil
}

// nearcallServer returns cfg's server, with its services, and cfg's dial options.
func nearcallServer(cfg *Config, more ...nearcall.ServerOption) (*nearcall.Server, []nearcall.DialOption) {
	srv := nearcall.NewServer(append(nearcallServerOptions(cfg), more...)...)
	for _, r := range cfg.Register {
		if cfg.Loop != nil {
			r(srv.OnLoop(cfg.Loop))
		} else {
			r(srv)
		}
	}
	return srv, nearcallDialOptions(cfg)
}

func nearcallServerOptions(cfg *Config) []nearcall.ServerOption {
	opts := []nearcall.ServerOption{
		nearcall.ChainUnaryInterceptor(cfg.UnaryServer...),
		nearcall.ChainStreamInterceptor(cfg.StreamServer...),
	}
	for _, h := range cfg.ServerStats {
		opts = append(opts, nearcall.StatsHandler(h))
	}
	if cfg.ServerTap != nil {
		opts = append(opts, nearcall.InTapHandle(cfg.ServerTap))
	}
	if cfg.ServerMaxRecv != 0 {
		opts = append(opts, nearcall.MaxRecvMsgSize(cfg.ServerMaxRecv))
	}
	if cfg.ServerMaxSend != 0 {
		opts = append(opts, nearcall.MaxSendMsgSize(cfg.ServerMaxSend))
	}
	if cfg.ServerEnds != (keepalive.ServerParameters{}) {
		opts = append(opts, nearcall.KeepaliveParams(cfg.ServerEnds))
	}
	if cfg.ServerCodec != nil {
		opts = append(opts, nearcall.ForceServerCodecV2(cfg.ServerCodec))
	}
	if cfg.ServerCreds != nil {
		opts = append(opts, nearcall.Creds(cfg.ServerCreds))
	}
	if cfg.Forward != nil {
		opts = append(opts, forward.To(cfg.Forward))
	}
	if cfg.Unknown != nil {
		opts = append(opts, nearcall.UnknownServiceHandler(cfg.Unknown))
	}
	return opts
}

func nearcallDialOptions(cfg *Config) []nearcall.DialOption {
	opts := []nearcall.DialOption{
		nearcall.WithChainUnaryInterceptor(cfg.UnaryClient...),
		nearcall.WithChainStreamInterceptor(cfg.StreamClient...),
		nearcall.WithDefaultCallOptions(cfg.CallOptions...),
	}
	for _, h := range cfg.ClientStats {
		opts = append(opts, nearcall.WithStatsHandler(h))
	}
	for _, p := range cfg.PerRPC {
		opts = append(opts, nearcall.WithPerRPCCredentials(p))
	}
	if cfg.Silence != nil {
		opts = append(opts, nearcall.WithContextDialer(cfg.dial))
	}
	if cfg.UserAgent != "" {
		opts = append(opts, nearcall.WithUserAgent(cfg.UserAgent))
	}
	if cfg.Authority != "" {
		opts = append(opts, nearcall.WithAuthority(cfg.Authority))
	}
	if cfg.ServiceConfig != "" {
		opts = append(opts, nearcall.WithDefaultServiceConfig(cfg.ServiceConfig))
	}
	if cfg.DisableRetry {
		opts = append(opts, nearcall.WithDisableRetry())
	}
	if cfg.MaxCallAttempts != nil {
		opts = append(opts, nearcall.WithMaxCallAttempts(*cfg.MaxCallAttempts))
	}
	return opts
}
