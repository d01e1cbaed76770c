package proxies

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall"
)

// eventually waits until f returns true.
func (p *proxy) eventually(what string, f func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatal(what)
		}
	}
}

// wantEnd waits for the end of a stream.
func wantEnd(t *testing.T, stream testpb.TestService_FullDuplexCallClient, want codes.Code) {
	t.Helper()
	_, err := stream.Recv()
	wantCode(t, err, want)
}

const readTimeout = "proxy_read_timeout 75s;"

// A process of nginx that is replaced closes its connections, a second later. With proxy_read_timeout it
// would close them just the same, but on a busy machine also during a call.
func TestAConnectionThatNginxClosesIsMadeAgain(t *testing.T) {
	t.Parallel()
	closing := nginx
	closing.configure = func(p *proxy, text string) string {
		return "worker_shutdown_timeout 1s;\n" + nginx.configure(p, text)
	}
	s := serve(t, "tcp:127.0.0.1:0", allowed)
	p := closing.start(t, s.address)
	for _, scheme := range []string{"ws", "wss"} {
		t.Run(scheme, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			conn := p.dial(scheme)
			client := testpb.NewTestServiceClient(conn)
			closes := func() {
				await(t, s.begun, "the connection begins")
				await(t, s.ended, "nginx closes the connection")
			}
			for range 2 {
				_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
				wantCode(t, err, codes.OK)
				p.reloads()
				closes()
				if conn.GetState() == connectivity.Ready { // the client does not know yet
					conn.WaitForStateChange(ctx, connectivity.Ready)
				}
			}
			stream := openStream(ctx, t, client)
			p.reloads()
			wantEnd(t, stream, codes.Unavailable)
			closes()
			_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
			wantCode(t, err, codes.OK)
			p.reloads()
			closes()
		})
	}
}

// The connection of a server without keepalive shows how long nginx waits.
func TestKeepaliveOfTheServerKeepsConnectionsThroughNginx(t *testing.T) {
	t.Parallel()
	const timeout = "proxy_read_timeout 3s;"
	silent := serve(t, "tcp:127.0.0.1:0", allowed)
	s := serve(t, "tcp:127.0.0.1:0", allowed, nearcall.KeepaliveParams(keepalive.ServerParameters{Time: time.Second}))
	witness := nginx.start(t, silent.address, readTimeout, timeout)
	p := nginx.start(t, s.address, readTimeout, timeout)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	idle := p.client("wss")
	_, err := idle.UnaryCall(ctx, &testpb.SimpleRequest{})
	wantCode(t, err, codes.OK)
	stream := openStream(ctx, t, p.client("wss"))
	for range 2 {
		_, err := witness.client("wss").UnaryCall(ctx, &testpb.SimpleRequest{})
		wantCode(t, err, codes.OK)
		await(t, silent.ended, "nginx closes the idle connection to the server without keepalive")
	}
	echo(t, stream)
	_, err = idle.UnaryCall(ctx, &testpb.SimpleRequest{})
	wantCode(t, err, codes.OK)
	if begun, ended := len(s.begun), len(s.ended); begun != 2 || ended != 0 {
		t.Errorf("the two clients have made %d connections, and %d have ended", begun, ended)
	}
}

func TestStreamsOfAProxyThatIsKilled(t *testing.T) {
	overWebSocket(t, func(t *testing.T, _ *server, p *proxy, client testpb.TestServiceClient) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		streams := []testpb.TestService_FullDuplexCallClient{openStream(ctx, t, client), openStream(ctx, t, client)}
		p.kill()
		for _, stream := range streams {
			wantEnd(t, stream, codes.Unavailable)
		}
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
		wantCode(t, err, codes.Unavailable)
		if err := p.begin(); err != nil {
			t.Fatal(err)
		}
		_, err = client.UnaryCall(ctx, &testpb.SimpleRequest{}, grpc.WaitForReady(true))
		wantCode(t, err, codes.OK)
		openStream(ctx, t, client)
	})
}

// changeServer lets p read its configuration again, with another server in it, and waits
// until calls reach that.
func (p *proxy) changeServer(address string) {
	p.t.Helper()
	p.write(address)
	p.reloads()
	p.eventually("calls do not reach the other server", func() bool {
		ctx, cancel := context.WithTimeout(p.t.Context(), patience)
		defer cancel()
		reply, err := p.client("ws").UnaryCall(ctx, &testpb.SimpleRequest{})
		wantCode(p.t, err, codes.OK)
		return reply.GetUsername() == address
	})
}

// nginx keeps the processes that have connections until these end.
func TestStreamsLiveOnWhenNginxReloads(t *testing.T) {
	t.Parallel()
	first, second := serve(t, "tcp:127.0.0.1:0", allowed), serve(t, "tcp:127.0.0.1:0", allowed)
	p := nginx.start(t, first.address)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client := p.client("wss")
	stream := openStream(ctx, t, client)
	p.changeServer(second.address)
	echo(t, stream)
	reply, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
	wantCode(t, err, codes.OK)
	if reply.GetUsername() != first.address {
		t.Errorf("a call beside the stream is answered by %s, want the first server", reply.GetUsername())
	}
}

// Caddy 2.6 closes WebSockets when it reads its configuration again.
func TestTheNextCallGoesToTheNewServerWhenCaddyReloads(t *testing.T) {
	t.Parallel()
	first, second := serve(t, "tcp:127.0.0.1:0", allowed), serve(t, "tcp:127.0.0.1:0", allowed)
	p := caddy.start(t, first.address)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client := p.client("wss")
	stream := openStream(ctx, t, client)
	p.changeServer(second.address)
	wantEnd(t, stream, codes.Unavailable)
	reply, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
	wantCode(t, err, codes.OK)
	if reply.GetUsername() != second.address {
		t.Errorf("the next call is answered by %s, want the second server", reply.GetUsername())
	}
}

func TestAServerThatIsGoneBehindAProxy(t *testing.T) {
	through(t, func(t *testing.T, k *kind) {
		first := serve(t, "tcp:"+ownIP()+":0", allowed)
		p := k.start(t, first.address)
		for _, scheme := range []string{"ws", "wss"} {
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()
			client := p.client(scheme)
			stream := openStream(ctx, t, client)
			first.stop()
			wantEnd(t, stream, codes.Unavailable)
			_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
			wantCode(t, err, codes.Unavailable)
			if !strings.Contains(err.Error(), "502 Bad Gateway") {
				t.Errorf("the error does not name the answer of %s: %v", k.name, err)
			}
			t.Log(err)
			first = serve(t, "tcp:"+first.address, allowed)
			_, err = client.UnaryCall(ctx, &testpb.SimpleRequest{}, grpc.WaitForReady(true))
			wantCode(t, err, codes.OK)
		}
	})
}
