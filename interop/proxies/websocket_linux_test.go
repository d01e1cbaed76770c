package proxies

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
)

// allowed lets a server of this machine be reached by the name of the site.
var allowed = nearcall.WebOrigins("https://" + site)

// overWebSocket runs a test with each proxy, over ws: and over wss:.
func overWebSocket(t *testing.T, test func(t *testing.T, s *server, p *proxy, client testpb.TestServiceClient)) {
	through(t, func(t *testing.T, k *kind) {
		s := serve(t, "tcp:127.0.0.1:0", allowed)
		p := k.start(t, s.address)
		for _, scheme := range []string{"ws", "wss"} {
			t.Run(scheme, func(t *testing.T) { test(t, s, p, p.client(scheme)) })
		}
	})
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Fatalf("the call ends with %v, want %v", err, want)
	}
}

func TestCallsOfAllKindsThroughAProxy(t *testing.T) {
	overWebSocket(t, func(t *testing.T, s *server, _ *proxy, client testpb.TestServiceClient) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		reply, err := client.UnaryCall(ctx, &testpb.SimpleRequest{Payload: payload(1000)})
		wantCode(t, err, codes.OK)
		if !bytes.Equal(reply.GetPayload().GetBody(), payload(1000).GetBody()) {
			t.Error("the unary call returns another payload")
		}

		down, err := client.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{ResponseParameters: []*testpb.ResponseParameters{{Size: 1}, {Size: 100_000}}})
		wantCode(t, err, codes.OK)
		for i, size := range []int{1, 100_000} {
			if i > 0 {
				s.next <- struct{}{} // when the message before it has come
			}
			m, err := down.Recv()
			wantCode(t, err, codes.OK)
			if n := len(m.GetPayload().GetBody()); n != size {
				t.Errorf("message %d of the server stream has %d bytes, want %d", i, n, size)
			}
		}
		if _, err := down.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("the server stream ends with %v", err)
		}

		up, err := client.StreamingInputCall(ctx)
		wantCode(t, err, codes.OK)
		for range 3 {
			wantCode(t, up.Send(&testpb.StreamingInputCallRequest{Payload: payload(50_000)}), codes.OK)
			await(t, s.received, "a message of the client stream")
		}
		sum, err := up.CloseAndRecv()
		wantCode(t, err, codes.OK)
		if sum.GetAggregatedPayloadSize() != 150_000 {
			t.Errorf("the client stream has sent %d bytes", sum.GetAggregatedPayloadSize())
		}

		both := openStream(ctx, t, client)
		for range 10 {
			echo(t, both)
		}
		wantCode(t, both.CloseSend(), codes.OK)
		if _, err := both.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("the bidi stream ends with %v", err)
		}
	})
}

// openStream opens a stream that echo uses.
func openStream(ctx context.Context, t *testing.T, client testpb.TestServiceClient) testpb.TestService_FullDuplexCallClient {
	t.Helper()
	stream, err := client.FullDuplexCall(ctx)
	wantCode(t, err, codes.OK)
	echo(t, stream)
	return stream
}

// echo sends a message, which must come back.
func echo(t *testing.T, stream testpb.TestService_FullDuplexCallClient) {
	t.Helper()
	wantCode(t, stream.Send(&testpb.StreamingOutputCallRequest{Payload: payload(100)}), codes.OK)
	m, err := stream.Recv()
	wantCode(t, err, codes.OK)
	if !bytes.Equal(m.GetPayload().GetBody(), payload(100).GetBody()) {
		t.Error("another message comes back")
	}
}

func TestManyCallsShareAConnectionThroughAProxy(t *testing.T) {
	overWebSocket(t, func(t *testing.T, s *server, _ *proxy, client testpb.TestServiceClient) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for len(s.begun) > 0 {
			<-s.begun
		}
		var callers sync.WaitGroup
		for c := range 10 {
			callers.Go(func() {
				for i := range 100 {
					body := []byte(strconv.Itoa(c) + "/" + strconv.Itoa(i))
					reply, err := client.UnaryCall(ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: body}})
					if err != nil || !bytes.Equal(reply.GetPayload().GetBody(), body) {
						t.Errorf("call %s returns %q, %v", body, reply.GetPayload().GetBody(), err)
						return
					}
				}
			})
		}
		callers.Wait()
		if n := len(s.begun); n != 1 {
			t.Errorf("1,000 calls went over %d connections", n)
		}
	})
}

func TestALargeMessageGoesThroughAProxy(t *testing.T) {
	overWebSocket(t, func(t *testing.T, _ *server, _ *proxy, client testpb.TestServiceClient) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		large := payload(10_000_000)
		reply, err := client.UnaryCall(ctx, &testpb.SimpleRequest{Payload: large})
		wantCode(t, err, codes.OK)
		if !bytes.Equal(reply.GetPayload().GetBody(), large.GetBody()) {
			t.Error("another message comes back")
		}
	})
}

// What the handler finds of the request is the proxy's; the caller is in X-Forwarded-For.
func TestWhatAHandlerSeesBehindAProxy(t *testing.T) {
	overWebSocket(t, func(t *testing.T, s *server, p *proxy, client testpb.TestServiceClient) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
		wantCode(t, err, codes.OK)
		found, request, caller := s.seen()
		if request == nil || found.AuthInfo.AuthType() != "insecure" {
			t.Fatalf("the handler finds %#v, %v", found.AuthInfo, request)
		}
		near := netip.MustParseAddrPort(found.Addr.String()).Addr().String()
		if near != "127.0.0.1" || request.RemoteAddr != found.Addr.String() {
			t.Errorf("the peer is %s, the request comes from %s, want the proxy at 127.0.0.1", found.Addr, request.RemoteAddr)
		}
		scheme := strings.Replace(strings.Split(t.Name(), "/")[2], "ws", "http", 1)
		for header, want := range map[string]string{"X-Forwarded-For": callersAddress, "X-Forwarded-Proto": scheme} {
			if got := request.Header.Values(header); len(got) != 1 || got[0] != want {
				t.Errorf("%s is %q, want %q", header, got, want)
			}
		}
		if want := p.host(scheme); request.Host != want || request.URL.String() != "/calls" {
			t.Errorf("the request is for %s %s, want %s /calls", request.Host, request.URL, want)
		}
		if caller.String() != callersAddress {
			t.Errorf("CallerOf returns %s", caller)
		}
	})
}

// A client can send X-Forwarded-For, and metadata of that name.
func TestClientsCannotChooseTheAddressThatTheyCallFrom(t *testing.T) {
	through(t, func(t *testing.T, k *kind) {
		s := serve(t, "tcp:127.0.0.1:0", allowed)
		p := k.start(t, s.address)
		client := p.client("ws", nearcall.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := p.dialContext(ctx, "tcp", address)
			return &forger{Conn: conn}, err
		}))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := client.UnaryCall(forged(ctx), &testpb.SimpleRequest{})
		wantCode(t, err, codes.OK)
		if _, _, caller := s.seen(); caller.String() != callersAddress {
			t.Errorf("CallerOf returns %s", caller)
		}
	})
}

// A client that calls without a proxy, from an address that is no proxy's, is itself.
func TestOnlyProxiesSayForWhomTheyCall(t *testing.T) {
	s := serve(t, "tcp:127.0.0.1:0")
	direct := &proxy{t: t, ip: "127.0.0.1", http: s.address}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := direct.client("ws", nearcall.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := direct.dialContext(ctx, "tcp", address)
		return &forger{Conn: conn}, err
	})).UnaryCall(forged(ctx), &testpb.SimpleRequest{})
	wantCode(t, err, codes.OK)
	_, request, caller := s.seen()
	if got := request.Header.Get("X-Forwarded-For"); got != "192.0.2.1" {
		t.Fatalf("X-Forwarded-For is %q", got)
	}
	if caller.String() != callersAddress {
		t.Errorf("CallerOf returns %s", caller)
	}
}
