package test

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall/internal/sniff"
	"github.com/nearcall/nearcall/internal/testing/asking"
)

// TestAnAskedSocketIsStillOne: grpc-go sets its TCP_USER_TIMEOUT, and the connection that it uses
// gives access to the socket.
func TestAnAskedSocketIsStillOne(t *testing.T) {
	lis := listenTCP(t)
	startGRPC(t, lis, echo{})
	creds, _ := asking.With(insecure.NewCredentials())
	dialled := make(chan *net.TCPConn, 1)
	conn, err := grpc.NewClient("passthrough:///server", grpc.WithTransportCredentials(creds),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: time.Minute, Timeout: 7 * time.Second}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", lis.Addr().String())
			if err == nil {
				dialled <- conn.(*net.TCPConn)
			}
			return conn, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	wantCode(t, <-invoke(t.Context(), testpb.NewTestServiceClient(conn)), codes.OK)
	if ms := userTimeout(t, <-dialled); ms != 7000 {
		t.Errorf("TCP_USER_TIMEOUT is %d ms", ms)
	}

	raw, err := net.Dial("tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	over, _, err := sniff.Ask(t.Context(), raw, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := over.(syscall.Conn); !ok {
		t.Errorf("a %T gives no access to its socket", over)
	} else if ms := userTimeout(t, s); ms != 0 {
		t.Errorf("TCP_USER_TIMEOUT is %d ms before anybody has set it", ms)
	}
}

// userTimeout returns the TCP_USER_TIMEOUT of a socket, in milliseconds.
func userTimeout(t *testing.T, s syscall.Conn) (ms int) {
	t.Helper()
	raw, err := s.SyscallConn()
	if err == nil {
		var failed error
		if err = raw.Control(func(fd uintptr) { ms, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); err == nil {
			err = failed
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return ms
}
