package test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/nearcall/nearcall"
)

type tapKey struct{}

// tapping is a tap handle that refuses calls by their metadata.
func tapping(asked *atomic.Int64) nearcall.ServerOption {
	return nearcall.InTapHandle(func(ctx context.Context, info *tap.Info) (context.Context, error) {
		asked.Add(1)
		if len(info.Header["refuse"]) > 0 {
			return nil, status.Error(codes.ResourceExhausted, "too many calls of "+info.FullMethodName)
		}
		return context.WithValue(ctx, tapKey{}, "tapped"), nil
	})
}

// TestEveryPathAsksTheTapHandle once for each call, and its context reaches the handler. These are the
// paths that have no environment in interop.
func TestEveryPathAsksTheTapHandle(t *testing.T) {
	hold(t)
	var asked, handled atomic.Int64
	look := func(ctx context.Context) {
		handled.Add(1)
		if ctx.Value(tapKey{}) != "tapped" {
			t.Error("the handler has not got the tap handle's context")
		}
	}
	service := echo{
		unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			look(ctx)
			return &testpb.SimpleResponse{}, nil
		},
		bidi: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			look(s.Context())
			return nil
		},
	}
	calls := func(client testpb.TestServiceClient) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
			s, streamErr := client.FullDuplexCall(ctx)
			if streamErr == nil {
				if _, streamErr = s.Recv(); streamErr == io.EOF {
					streamErr = nil
				}
			}
			if status.Code(err) != status.Code(streamErr) {
				return fmt.Errorf("%v, and of a stream %v", err, streamErr)
			}
			return err
		}
	}
	posts := func(client *http.Client, url string) func(context.Context) error {
		return func(ctx context.Context) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+testpb.TestService_UnaryCall_FullMethodName, strings.NewReader("{}"))
			if err != nil {
				return err
			}
			r.Header.Set("Content-Type", "application/json")
			if md, _ := metadata.FromOutgoingContext(ctx); len(md["refuse"]) > 0 {
				r.Header.Set("Refuse", "yes")
			}
			resp, err := client.Do(r)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			switch {
			case err != nil:
				return err
			case resp.StatusCode == http.StatusTooManyRequests && strings.Contains(string(body), "too many calls"):
				return status.Error(codes.ResourceExhausted, string(body))
			case resp.StatusCode != http.StatusOK:
				return fmt.Errorf("%s: %s", resp.Status, body)
			}
			return nil
		}
	}
	check := func(name string, perCall int64, call func(context.Context) error) {
		t.Helper()
		asked.Store(0)
		handled.Store(0)
		if err := call(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := call(metadata.AppendToOutgoingContext(t.Context(), "refuse", "yes")); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "too many calls of /grpc.testing.TestService/") {
			t.Errorf("%s: a refused call: %v", name, err)
		}
		if a, h := asked.Load(), handled.Load(); a != 2*perCall || h != perCall {
			t.Errorf("%s: asked %d times and handled %d calls, want %d and %d", name, a, h, 2*perCall, perCall)
		}
	}
	var both http.Protocols
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)

	lis := listen(t, "tcp:127.0.0.1:0")
	start(t, serve(t, service, tapping(&asked)), lis)
	address := strings.TrimPrefix(lis.Target(), "tcp:")
	check("a resolved target", 2, calls(dial(t, "passthrough:///"+address, nearcall.WithTransportCredentials(insecureCreds()))))
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		var p http.Protocols
		p.SetHTTP1(!http2)
		p.SetUnencryptedHTTP2(http2)
		transport := &http.Transport{Protocols: &p}
		check(name, 1, posts(&http.Client{Transport: transport}, "http://"+address))
		transport.CloseIdleConnections()
	}
	client, _ := connect(t, serve(t, service, nearcall.MaxConcurrentStreams(1), tapping(&asked)))
	check("limited", 2, calls(client))

	handler := serve(t, service, tapping(&asked))
	site := httptest.NewUnstartedServer(handler)
	site.Config.Protocols = &both
	site.Config.HTTP2 = &http.HTTP2Config{MaxEncoderHeaderTableSize: 1}
	site.Start()
	t.Cleanup(site.Close)
	check("ServeHTTP", 1, posts(site.Client(), site.URL))
	check("grpc-go over ServeHTTP", 2, calls(dialGRPC(t, site.Listener)))

	defer func() {
		if recover() == nil {
			t.Error("a second tap handle is accepted")
		}
	}()
	nearcall.NewServer(tapping(&asked), tapping(&asked))
}
