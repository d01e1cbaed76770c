package interop

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

// nearcall's WebSockets are read and written by another implementation, which uses frames of
// other sizes, on either side.

// echoed returns what it receives.
type echoed struct {
	testpb.UnimplementedTestServiceServer
}

func (echoed) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	for {
		in, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: in.Payload}); err != nil {
			return err
		}
	}
}

// exchange makes streams of messages of all sizes at the same time.
func exchange(t *testing.T, conn grpc.ClientConnInterface) {
	t.Helper()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			s, err := testpb.NewTestServiceClient(conn).FullDuplexCall(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			for i, n := range []int{0, 1, 125, 126, 65_535, 65_536, 3 << 20} {
				sent := bytes.Repeat([]byte{byte(i + 1)}, n)
				if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: sent}}); err != nil {
					t.Error(err)
					return
				}
				got, err := s.Recv()
				if err != nil || !bytes.Equal(got.GetPayload().GetBody(), sent) {
					t.Errorf("%d bytes: %d come back, %v", n, len(got.GetPayload().GetBody()), err)
					return
				}
			}
			if err := s.CloseSend(); err != nil {
				t.Error(err)
			}
			if _, err := s.Recv(); err != io.EOF {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

func newEchoed(t *testing.T) *nearcall.Server {
	t.Helper()
	srv := nearcall.NewServer()
	testpb.RegisterTestServiceServer(srv, echoed{})
	t.Cleanup(srv.Stop)
	return srv
}

// The agreed credentials say that the server speaks nearcall's protocol: within a WebSocket it cannot be asked.
type agreed struct {
	credentials.TransportCredentials
}

// ClientHandshake implements [credentials.TransportCredentials].
func (agreed) ClientHandshake(_ context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return conn, credentials.TLSInfo{State: tls.ConnectionState{NegotiatedProtocol: "nearcall/1"}}, nil
}

func (a agreed) Clone() credentials.TransportCredentials { return a }

func TestAnotherWebSocketClient(t *testing.T) {
	lis, err := nearcall.Listen("ws://127.0.0.1:0/calls")
	if err != nil {
		t.Fatal(err)
	}
	srv := newEchoed(t)
	go func() { _ = srv.Serve(lis) }()
	conn, err := nearcall.NewClient("tcp:localhost:1", nearcall.WithTransportCredentials(agreed{insecure.NewCredentials()}), nearcall.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		c, _, err := websocket.Dial(ctx, lis.Target(), &websocket.DialOptions{Subprotocols: []string{"nearcall.v1"}})
		if err != nil {
			return nil, err
		}
		c.SetReadLimit(-1)
		return websocket.NetConn(context.Background(), c, websocket.MessageBinary), nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	exchange(t, conn)
}

func TestAnotherWebSocketServer(t *testing.T) {
	conns := &handed{conns: make(chan net.Conn), closed: make(chan struct{})}
	srv := newEchoed(t)
	go func() { _ = srv.Serve(conns) }()
	there := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"nearcall.v1"}})
		if err != nil {
			t.Error(err)
			return
		}
		c.SetReadLimit(-1)
		select {
		case conns.conns <- websocket.NetConn(context.Background(), c, websocket.MessageBinary):
		case <-conns.closed:
			_ = c.CloseNow()
		}
	}))
	defer there.Close()
	conn, err := nearcall.NewClient(strings.Replace(there.URL, "http", "ws", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	exchange(t, conn)
}

// handed is a listener of connections that are handed to it.
type handed struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (h *handed) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

func (h *handed) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

func (h *handed) Addr() net.Addr { return &net.TCPAddr{} }
