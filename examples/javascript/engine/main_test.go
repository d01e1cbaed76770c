package engine_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/internal/testing/leak"

	"github.com/nearcall/nearcall/examples/javascript/engine"
)

func TestMain(m *testing.M) { leak.Main(m) }

var ordersService protoreflect.ServiceDescriptor = orderspb.File_examples_orders_orderspb_orders_proto.Services().ByName("Orders")

// patience is the time limit of a test.
const patience = 20 * time.Second

func withPatience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// newEngine returns an engine that is stopped when the test ends. Each error that only the
// engine's report function learns of fails the test.
func newEngine(t *testing.T) *engine.Engine {
	e := engine.New(func(err error) { t.Errorf("nobody is told of %v", err) })
	t.Cleanup(e.Stop)
	return e
}

func run(t *testing.T, e *engine.Engine, source string) string {
	t.Helper()
	text, err := e.Run(withPatience(t), t.Name(), source)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// rest is the handlers that a test does not need.
const rest = `
	place() { throw new Error('place') }, await() { throw new Error('await') }, list() { throw new Error('list') },
	import() { throw new Error('import') }, haggle() { throw new Error('haggle') },
`

// serve serves Orders with the handlers of a script, each of which is optional.
func serve(t *testing.T, e *engine.Engine, handlers string) *nearcall.Server {
	t.Helper()
	run(t, e, "const service = {"+rest+handlers+"};")
	srv := nearcall.NewServer()
	if err := e.Register(srv, ordersService, "service"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Stop)
	return srv
}

func inProcess(t *testing.T, srv *nearcall.Server) orderspb.OrdersClient {
	conn := srv.Client()
	t.Cleanup(func() { _ = conn.Close() })
	return orderspb.NewOrdersClient(conn)
}

// eachPath runs f as a subtest with a client over each path to srv.
func eachPath(t *testing.T, srv *nearcall.Server, f func(t *testing.T, client orderspb.OrdersClient)) {
	t.Run("in process", func(t *testing.T) { f(t, inProcess(t, srv)) })
	for name, target := range map[string]string{
		"unix": "unix:" + filepath.Join(t.TempDir(), "s"),
		"tcp":  "tcp:127.0.0.1:0",
	} {
		t.Run(name, func(t *testing.T) {
			lis, err := nearcall.Listen(target)
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- srv.Serve(lis) }()
			conn, err := nearcall.NewClient(lis.Target(), nearcall.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = conn.Close()
				_ = lis.Close()
				<-served
			})
			f(t, orderspb.NewOrdersClient(conn))
		})
	}
}

// A goService implements Orders in Go with the functions of a test.
type goService struct {
	orderspb.UnimplementedOrdersServer
	place  func(context.Context, *orderspb.PlaceRequest) (*orderspb.Order, error)
	list   func(*orderspb.ListRequest, grpc.ServerStreamingServer[orderspb.Order]) error
	sum    func(grpc.ClientStreamingServer[orderspb.PlaceRequest, orderspb.ImportReply]) error
	haggle func(grpc.BidiStreamingServer[orderspb.Offer, orderspb.Answer]) error
}

var errUnwanted = errors.New("the test does not expect this call")

func (s *goService) Place(ctx context.Context, req *orderspb.PlaceRequest) (*orderspb.Order, error) {
	if s.place == nil {
		return nil, errUnwanted
	}
	return s.place(ctx, req)
}

func (s *goService) List(req *orderspb.ListRequest, stream grpc.ServerStreamingServer[orderspb.Order]) error {
	if s.list == nil {
		return errUnwanted
	}
	return s.list(req, stream)
}

func (s *goService) Import(stream grpc.ClientStreamingServer[orderspb.PlaceRequest, orderspb.ImportReply]) error {
	if s.sum == nil {
		return errUnwanted
	}
	return s.sum(stream)
}

func (s *goService) Haggle(stream grpc.BidiStreamingServer[orderspb.Offer, orderspb.Answer]) error {
	if s.haggle == nil {
		return errUnwanted
	}
	return s.haggle(stream)
}

// bind gives scripts the service as "orders".
func bind(t *testing.T, e *engine.Engine, s *goService) {
	t.Helper()
	srv := nearcall.NewServer(nearcall.WaitForHandlers(true))
	orderspb.RegisterOrdersServer(srv, s)
	conn := srv.Client()
	t.Cleanup(func() {
		_ = conn.Close()
		srv.Stop()
	})
	if err := e.Bind("orders", conn, ordersService); err != nil {
		t.Fatal(err)
	}
}
