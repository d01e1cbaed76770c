package test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // makes clients check
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

// A client of another protocol gets an error in its own protocol that says what it has
// reached. The server is not affected.
func TestForeignClientsAreToldWhomTheyMet(t *testing.T) {
	lis := listen(t, "tcp:127.0.0.1:0")
	start(t, serve(t, echo{}, nearcall.OtherClients(nearcall.WebClients)), lis)
	address := lis.Addr().String()

	t.Run("gRPC", func(t *testing.T) {
		conn, err := grpc.NewClient("passthrough:"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for range 3 {
			err = <-invoke(t.Context(), testpb.NewTestServiceClient(conn), grpc.WaitForReady(true))
			wantCode(t, err, codes.Unimplemented)
			if !strings.Contains(err.Error(), "this is a nearcall server") {
				t.Errorf("the client is told: %v", err)
			}
		}
	})
	t.Run("HTTP/1", func(t *testing.T) {
		lis := listen(t, "tcp:127.0.0.1:0")
		start(t, serve(t, echo{}, nearcall.OtherClients(nearcall.GRPCClients)), lis)
		address := lis.Addr().String()
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		for _, method := range []string{"GET", "POST", "PATCH"} {
			req, err := http.NewRequestWithContext(t.Context(), method, "http://"+address, strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusHTTPVersionNotSupported || !strings.Contains(string(body), "this is a nearcall server") {
				t.Errorf("%s: %s: %s", method, resp.Status, body)
			}
		}
	})
	t.Run("TLS", func(t *testing.T) {
		err := <-invoke(t.Context(), dial(t, lis.Target(), nearcall.WithTransportCredentials(credentials.NewTLS(newCertificates(t).client(nil)))))
		wantCode(t, err, codes.Unavailable)
		if !strings.Contains(err.Error(), "without TLS") {
			t.Errorf("the client is told: %v", err)
		}
	})
	t.Run("unknown", func(t *testing.T) {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "\x00\x01\x02"); err != nil {
			t.Fatal(err)
		}
		if answer, err := io.ReadAll(conn); err != nil || string(answer) != "nearcall/1\n" {
			t.Errorf("%q, %v", answer, err)
		}
	})
	wantCode(t, <-invoke(t.Context(), dial(t, lis.Target())), codes.OK)
}

// The first stream of a client with health checks is such a check. If its connection ended
// with that, the client would connect again at once, without backoff, and make no call.
func TestAForeignClientWithHealthChecksIsToldWhomItMet(t *testing.T) {
	lis := &acceptCounter{Listener: listenTCP(t)}
	start(t, serve(t, echo{}, nearcall.OtherClients(nearcall.WebClients)), lis)
	conn, err := grpc.NewClient("passthrough:"+lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"healthCheckConfig": {"serviceName": ""}, "loadBalancingConfig": [{"round_robin": {}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 3 {
		err = <-invoke(t.Context(), testpb.NewTestServiceClient(conn), grpc.WaitForReady(true))
		wantCode(t, err, codes.Unimplemented)
		if !strings.Contains(err.Error(), "this is a nearcall server") {
			t.Errorf("the client is told: %v", err)
		}
	}
	if n := lis.accepted.Load(); n != 1 {
		t.Errorf("the client has connected %d times", n)
	}
}

// An acceptCounter counts the connections that a listener accepts.
type acceptCounter struct {
	net.Listener
	accepted atomic.Int32
}

func (l *acceptCounter) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.accepted.Add(1)
	}
	return conn, err
}

func TestAClientThatMeetsAnHTTPServerIsToldSo(t *testing.T) {
	lis := listenTCP(t)
	srv := &http.Server{Handler: http.NotFoundHandler()}
	go srv.Serve(lis)
	defer srv.Close()
	wantForeign(t, lis, ": an HTTP/1 server listens there")
}

// wantForeign makes calls to a server of another protocol. They fail with text, even
// with WaitForReady, because this server never becomes ready.
func wantForeign(t *testing.T, lis net.Listener, text string) {
	t.Helper()
	client := dial(t, "tcp:"+lis.Addr().String())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, waits := range []bool{true, false, true} { // the first call connects
		err := <-invoke(ctx, client, grpc.WaitForReady(waits))
		wantCode(t, err, codes.Unavailable)
		if !strings.Contains(err.Error(), text) {
			t.Errorf("WaitForReady(%v): the client is told: %v", waits, err)
		}
	}
}
