package client

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/call/server"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/callservice"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/transport/inproc"
)

func TestMain(m *testing.M) { leak.Main(m) }

// The service of the tests.
type (
	msg      = callservice.Message
	handlers = callservice.Handlers
)

const (
	unaryMethod  = callservice.UnaryMethod
	streamMethod = callservice.StreamMethod
)

var (
	desc       = callservice.Desc
	streamDesc = callservice.StreamDesc
)

// A bed is a test's server with a client in process.
type bed struct {
	*Client
	server  *server.Server
	session link.Session
}

// A clientSetup is what a test can change of a client.
type clientSetup struct {
	*options.Client
	Config
}

// start returns a bed with the handlers h. sc and cc, which may be nil, change the
// configurations of the server and the client.
func start(t testing.TB, h handlers, sc func(*options.Server), cc func(*clientSetup)) *bed {
	t.Helper()
	so := options.NewServer(nil)
	if sc != nil {
		sc(so)
	}
	b := &bed{server: server.New(so, server.Config{})}
	b.server.Register(&desc, h, nil)
	session, err := inproc.Connect("bed", inproc.Options{Config: &options.NewClient(nil).Connections}, b.server.Accept)
	if err != nil {
		t.Fatal(err)
	}
	b.session = session
	setup := clientSetup{options.NewClient(nil), Config{Sessions: callservice.Always{Session: session}, Authority: "bed", GRPC: func() *grpc.ClientConn { return nil }}}
	if cc != nil {
		cc(&setup)
	}
	b.Client = New(setup.Client, setup.Config)
	b.BeginSession(session)
	t.Cleanup(func() {
		_ = session.Close(status.Error(codes.Canceled, "the test is over"))
		b.server.Stop()
	})
	return b
}

// call makes a unary call.
func (b *bed) call(ctx context.Context, opts ...grpc.CallOption) (*msg, error) {
	reply := new(msg)
	err := b.Invoke(ctx, unaryMethod, wrapperspb.Bytes([]byte("request")), reply, opts...)
	return reply, err
}
