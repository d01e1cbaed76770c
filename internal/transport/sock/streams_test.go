package sock

import (
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/needs"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestACallCrossesASocket(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			address := "127.0.0.1:0"
			if network == "unix" {
				needs.UnixSockets(t)
				address = filepath.Join(t.TempDir(), "s")
			}
			inner, err := net.Listen(network, address)
			if err != nil {
				t.Fatal(err)
			}
			lis := &Listener{Listener: inner}
			accepted := make(transporttest.Accepter, 1)
			sessions := make(chan link.Session, 1)
			ended := make(chan error)
			go func() {
				ended <- lis.Sessions(func(s link.Session) link.Acceptor {
					sessions <- s
					return accepted
				})
			}()
			client, err := Dialer{Target: network, Network: network, Address: inner.Addr().String()}.Dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			caller, err := client.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}})
			if err != nil {
				t.Fatal(err)
			}
			big := make([]byte, 3<<20)
			send := &link.Frame{Msg: link.Live(wrapperspb.Bytes(big), codec.Proto()), HasMsg: true, EndSend: true}
			if err := caller.Send(send); err != nil {
				t.Fatal(err)
			}
			got := new(wrapperspb.BytesValue)
			callee := <-accepted
			f := &link.Frame{Sink: link.Sink{Dst: got, Codec: codec.Proto(), Limit: 4 << 20}}
			if err := callee.Recv(f); err != nil || len(got.Value) != len(big) {
				t.Fatalf("%d bytes, %v", len(got.Value), err)
			}
			if err := callee.Send(&link.Frame{End: &link.End{}}); err != nil {
				t.Fatal(err)
			}
			end := &link.Frame{}
			if err := caller.Recv(end); err != nil || end.End == nil {
				t.Fatalf("%+v, %v", end, err)
			}
			_ = client.Close(errors.New("done"))
			select {
			case <-(<-sessions).Ended():
			case <-time.After(10 * time.Second):
				t.Error("the server's session has not ended")
			}
			_ = lis.Close()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}
