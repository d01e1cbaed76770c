package nearconnect_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	nearconnect "github.com/nearcall/nearcall/connect"
	"github.com/nearcall/nearcall/connect/internal/echopb"
	"github.com/nearcall/nearcall/connect/internal/echopb/echopbconnect"
)

var protocols = map[string][]connecthttp.Option{
	"Connect":         nil,
	"Connect in JSON": {connecthttp.WithProtoJSON()},
	"gRPC":            {connecthttp.WithGRPC()},
	"gRPC-Web":        {connecthttp.WithGRPCWeb()},
}

// testHTTP calls the server at an address with Connect's own transport.
func testHTTP(t *testing.T, address string, check func(*testing.T, echopbconnect.EchoClient)) {
	for _, http2 := range []bool{false, true} {
		for name, opts := range protocols {
			if name == "gRPC" && !http2 {
				continue
			}
			t.Run(name+map[bool]string{false: " over HTTP/1.1", true: " over HTTP/2"}[http2], func(t *testing.T) {
				transport := &http.Transport{Protocols: new(http.Protocols)}
				transport.Protocols.SetHTTP1(!http2)
				transport.Protocols.SetUnencryptedHTTP2(http2)
				defer transport.CloseIdleConnections()
				c := echopbconnect.NewEchoClient(connect.NewClient(connecthttp.NewTransport(&http.Client{Transport: transport}, "http://"+address, opts...)))
				if m, err := c.Unary(t.Context(), &echopb.Message{Number: 1, Text: "ä"}); err != nil || m.GetNumber() != 1 || m.GetText() != "ä" {
					t.Errorf("Unary returns %v and %v", m, err)
				}
				s, err := c.Count(t.Context(), &echopb.Message{Number: 3})
				if err != nil {
					t.Fatal(err)
				}
				for i := range int64(3) {
					if m, err := s.Receive(); err != nil || m.GetNumber() != i+1 {
						t.Errorf("Count returns %v and %v", m, err)
					}
				}
				if _, err := s.Receive(); !errors.Is(err, io.EOF) {
					t.Errorf("Count ends with %v", err)
				}
				check(t, c)
			})
		}
	}
}

// TestHTTPClientsCallConnectsHandlers at nearcall's port.
func TestHTTPClientsCallConnectsHandlers(t *testing.T) {
	srv := serverOf(echo{unary: func(ctx context.Context, m *echopb.Message) (*echopb.Message, error) {
		if m.GetText() == "fail" {
			return nil, connect.NewError(connect.CodeAborted, "as asked")
		}
		answer(ctx)
		return m, nil
	}})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- srv.Serve(lis) }()
	testHTTP(t, lis.Addr().String(), func(t *testing.T, c echopbconnect.EchoClient) {
		ctx, info := connect.NewClientContext(t.Context())
		info.RequestHeader().Set("Words", "one")
		if _, err := c.Unary(ctx, &echopb.Message{}); err != nil {
			t.Error(err)
		}
		wantText(t, "the header", info.ResponseHeader().Get("Saw"), "one")
		wantText(t, "the trailer", info.ResponseTrailer().Get("Last"), "one")
		_, err := c.Unary(t.Context(), &echopb.Message{Text: "fail"})
		wantText(t, "the message", wantCode(t, err, connect.CodeAborted).Message(), "as asked")
	})
	resp, err := http.Post("http://"+lis.Addr().String()+echopbconnect.EchoUnaryProcedure, "application/json", strings.NewReader(`{"number":7}`))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	wantText(t, "what curl gets", strings.ReplaceAll(string(body), " ", ""), `{"number":"7"}`)
	srv.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestServicesOfGRPCOverHTTP mounts services of gRPC with connecthttp.
func TestServicesOfGRPCOverHTTP(t *testing.T) {
	var services nearconnect.Services
	echopb.RegisterEchoServer(&services, grpcEcho{unary: func(ctx context.Context, m *echopb.Message) (*echopb.Message, error) {
		if m.GetText() == "fail" {
			return nil, status.Error(codes.Aborted, "as asked")
		}
		md, _ := metadata.FromIncomingContext(ctx)
		if from, ok := peer.FromContext(ctx); !ok || from.Addr.Network() != "tcp" || from.Addr.String() == "" {
			t.Errorf("the peer is %v", from)
		}
		_ = grpc.SetHeader(ctx, metadata.Pairs("saw", strings.Join(md["words"], ",")))
		return m, nil
	}})
	mux := http.NewServeMux()
	connecthttp.Mount(mux, nearconnect.NewServer(&services))
	srv := httptest.NewUnstartedServer(mux)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	defer srv.Close()
	testHTTP(t, srv.Listener.Addr().String(), func(t *testing.T, c echopbconnect.EchoClient) {
		ctx, info := connect.NewClientContext(t.Context())
		info.RequestHeader().Set("Words", "one")
		if _, err := c.Unary(ctx, &echopb.Message{}); err != nil {
			t.Error(err)
		}
		wantText(t, "the header", info.ResponseHeader().Get("Saw"), "one")
		_, err := c.Unary(t.Context(), &echopb.Message{Text: "fail"})
		wantText(t, "the message", wantCode(t, err, connect.CodeAborted).Message(), "as asked")
	})
}

// TestOrdinaryConnectionsOfGRPC: the transport takes a *grpc.ClientConn, and Register a *grpc.Server.
func TestOrdinaryConnectionsOfGRPC(t *testing.T) {
	server := connect.NewServer()
	echopbconnect.RegisterEchoHandler(server, echo{unary: func(ctx context.Context, m *echopb.Message) (*echopb.Message, error) {
		info, _ := connect.CallInfoForServerContext(ctx)
		wantText(t, "the handler's protocol", info.Protocol, "grpc")
		for key := range info.RequestHeader().All() {
			if key != "User-Agent" {
				t.Errorf("the header has the key %s", key)
			}
		}
		info.ResponseHeader().Set("Encoding", info.RequestEncoding)
		return m, nil
	}})
	srv := grpc.NewServer()
	nearconnect.Register(srv, server)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- srv.Serve(lis) }()
	conn, err := nearcall.NewClient("grpc:"+lis.Addr().String(), nearcall.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	testKinds(t, t.Context(), connectCaller(conn))
	_ = conn.Close()
	real, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	testKinds(t, t.Context(), connectCaller(real))
	ctx, info := connect.NewClientContext(t.Context())
	if _, err := clientOf(real).Unary(ctx, &echopb.Message{}); err != nil {
		t.Error(err)
	}
	wantText(t, "the protocol", info.Protocol, "grpc")
	wantText(t, "the handler's encoding", info.ResponseHeader().Get("Encoding"), "identity")
	ctx, info = connect.NewClientContext(t.Context())
	if _, err := clientOf(real, grpc.UseCompressor(gzip.Name)).Unary(ctx, &echopb.Message{}); err != nil {
		t.Error(err)
	}
	wantText(t, "the handler's encoding", info.ResponseHeader().Get("Encoding"), "gzip")
	_ = real.Close()
	srv.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
