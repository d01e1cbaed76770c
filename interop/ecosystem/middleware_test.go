package ecosystem

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/nearcall/nearcall/interop/ecosystem/internal/gatewaypb"
)

func TestRecoveryTurnsPanicsIntoErrors(t *testing.T) {
	handled := recovery.WithRecoveryHandlerContext(func(ctx context.Context, p any) error {
		md, _ := metadata.FromIncomingContext(ctx)
		return status.Errorf(codes.DataLoss, "%v for %v", p, md.Get("who"))
	})
	for name, opts := range map[string][]recovery.Option{"default": nil, "handler": {handled}} {
		t.Run(name, func(t *testing.T) {
			compare(t, func(t *testing.T, run runner) []string {
				r := run(t, program{
					register:     registerShop(&shop{}),
					serverUnary:  []grpc.UnaryServerInterceptor{recovery.UnaryServerInterceptor(opts...)},
					serverStream: []grpc.StreamServerInterceptor{recovery.StreamServerInterceptor(opts...)},
				})
				client := pb.NewShopClient(r.conn)
				ctx := metadata.AppendToOutgoingContext(t.Context(), "who", "me")
				var notes []string
				note := func(what string, err error, v any) {
					// The rest of the default message is the stack.
					message, _, _ := strings.Cut(status.Convert(err).Message(), "\n")
					notes = append(notes, fmt.Sprintf("%s: %v %q, %v", what, status.Code(err), message, v))
				}
				// Twice, because a worker that recovered serves further calls.
				for range 2 {
					item, err := client.Get(ctx, &pb.GetRequest{Name: "panic"})
					note("Get", err, item)
					list, err := client.List(ctx, &pb.ListRequest{Count: 2, FailAfter: "panic"})
					if err != nil {
						t.Fatal(err)
					}
					n, err := drain(list.Recv)
					note("List", err, n)
				}
				_, err := client.Get(context.Background(), &pb.GetRequest{Name: "panic"})
				note("Get without an end", err, "")
				_, err = client.Get(ctx, &pb.GetRequest{Name: "tea"})
				note("Get of something else", err, "")
				return notes
			})
		})
	}
}

// A logbook is a logger that records its lines without fields that vary between runs.
type logbook struct {
	mu    sync.Mutex
	lines []string
}

func (b *logbook) Log(_ context.Context, level logging.Level, msg string, fields ...any) {
	line := fmt.Sprintf("%v %s:", level, msg)
	for it := logging.Fields(fields).Iterator(); it.Next(); {
		switch k, v := it.At(); k {
		case "grpc.start_time", "grpc.time_ms", "grpc.recv.duration", "grpc.send.duration", "grpc.request.deadline", "peer.address":
			line += fmt.Sprintf(" %s", k)
		default:
			if m, ok := v.(proto.Message); ok {
				b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
				v = fmt.Sprintf("%T %q %v", m, b, err)
			}
			line += fmt.Sprintf(" %s=%v", k, v)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, line)
}

func TestLoggingWritesTheSameLines(t *testing.T) {
	compare(t, func(t *testing.T, run runner) []string {
		var server, client logbook
		events := logging.WithLogOnEvents(logging.StartCall, logging.FinishCall, logging.PayloadReceived, logging.PayloadSent)
		r := run(t, program{
			register:     registerShop(&shop{}),
			serverUnary:  []grpc.UnaryServerInterceptor{logging.UnaryServerInterceptor(&server, events)},
			serverStream: []grpc.StreamServerInterceptor{logging.StreamServerInterceptor(&server, events)},
			clientUnary:  []grpc.UnaryClientInterceptor{logging.UnaryClientInterceptor(&client, events)},
			clientStream: []grpc.StreamClientInterceptor{logging.StreamClientInterceptor(&client, events)},
		})
		notes := shopAround(t.Context(), t, r.conn)
		r.stop()
		notes = append(notes, "the server's:")
		notes = append(notes, server.lines...)
		notes = append(notes, "the client's:")
		return append(notes, client.lines...)
	})
}

// who is the context key for the caller's name, which an authFunc sets.
type who struct{}

func authFunc(ctx context.Context) (context.Context, error) {
	token, err := auth.AuthFromMD(ctx, "bearer")
	if err != nil {
		return nil, err
	}
	if token != "open sesame" {
		return nil, status.Error(codes.PermissionDenied, "wrong token")
	}
	return context.WithValue(ctx, who{}, "ali baba"), nil
}

// A guardedShop records the callers of its handlers.
type guardedShop struct {
	shop
	callers []any
}

func (s *guardedShop) Get(ctx context.Context, req *pb.GetRequest) (*pb.Item, error) {
	s.callers = append(s.callers, ctx.Value(who{}))
	return s.shop.Get(ctx, req)
}

func (s *guardedShop) List(req *pb.ListRequest, stream grpc.ServerStreamingServer[pb.Item]) error {
	s.callers = append(s.callers, stream.Context().Value(who{}))
	return s.shop.List(req, stream)
}

// An openShop overrides the authFunc.
type openShop struct {
	guardedShop
	methods []string
}

func (s *openShop) AuthFuncOverride(ctx context.Context, method string) (context.Context, error) {
	s.methods = append(s.methods, method)
	return context.WithValue(ctx, who{}, "anybody"), nil
}

func TestAuthLetsInWhoHasTheToken(t *testing.T) {
	compare(t, func(t *testing.T, run runner) []string {
		var guarded guardedShop
		var open openShop
		var notes []string
		for _, impl := range []pb.ShopServer{&guarded, &open} {
			r := run(t, program{
				register:     func(srv reflection.GRPCServer) { pb.RegisterShopServer(srv, impl) },
				serverUnary:  []grpc.UnaryServerInterceptor{auth.UnaryServerInterceptor(authFunc)},
				serverStream: []grpc.StreamServerInterceptor{auth.StreamServerInterceptor(authFunc)},
			})
			client := pb.NewShopClient(r.conn)
			for _, token := range []string{"", "bearer let me in", "basic open sesame", "Bearer open sesame"} {
				ctx := t.Context()
				if token != "" {
					ctx = metadata.AppendToOutgoingContext(ctx, "authorization", token)
				}
				_, err := client.Get(ctx, &pb.GetRequest{Name: "tea"})
				notes = append(notes, fmt.Sprintf("%T Get with %q: %v", impl, token, err))
				list, err := client.List(ctx, &pb.ListRequest{Count: 1})
				if err != nil {
					t.Fatal(err)
				}
				n, err := drain(list.Recv)
				notes = append(notes, fmt.Sprintf("%T List with %q: %d, %v", impl, token, n, err))
			}
			r.stop()
		}
		if len(guarded.callers) != 2 || len(open.callers) != 8 {
			t.Errorf("handlers were called by %v, and by %v where all may", guarded.callers, open.callers)
		}
		return append(notes, fmt.Sprint(guarded.callers), fmt.Sprint(open.callers), fmt.Sprint(open.methods))
	})
}

func TestSelectorAppliesInterceptorsToWhatMatches(t *testing.T) {
	errClosed := status.Error(codes.FailedPrecondition, "closed")
	closed := selector.MatchFunc(func(_ context.Context, c interceptors.CallMeta) bool {
		return c.Method == "Get" || c.Typ == interceptors.ServerStream
	})
	for name, p := range map[string]program{
		"server": {
			serverUnary: []grpc.UnaryServerInterceptor{selector.UnaryServerInterceptor(
				func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
					return nil, errClosed
				}, closed)},
			serverStream: []grpc.StreamServerInterceptor{selector.StreamServerInterceptor(
				func(any, grpc.ServerStream, *grpc.StreamServerInfo, grpc.StreamHandler) error { return errClosed }, closed)},
		},
		"client": {
			clientUnary: []grpc.UnaryClientInterceptor{selector.UnaryClientInterceptor(
				func(context.Context, string, any, any, *grpc.ClientConn, grpc.UnaryInvoker, ...grpc.CallOption) error {
					return errClosed
				}, closed)},
			clientStream: []grpc.StreamClientInterceptor{selector.StreamClientInterceptor(
				func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, grpc.Streamer, ...grpc.CallOption) (grpc.ClientStream, error) {
					return nil, errClosed
				}, closed)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			compare(t, func(t *testing.T, run runner) []string {
				p := p
				p.register = registerShop(&shop{})
				client := pb.NewShopClient(run(t, p).conn)
				_, get := client.Get(t.Context(), &pb.GetRequest{Name: "tea"})
				_, add := client.Add(t.Context(), &pb.Item{Name: "tea"})
				list, listing := client.List(t.Context(), &pb.ListRequest{Count: 1})
				if listing == nil {
					_, listing = drain(list.Recv)
				}
				haggle, err := client.Haggle(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if err := haggle.CloseSend(); err != nil {
					t.Fatal(err)
				}
				_, haggling := drain(haggle.Recv)
				if status.Code(get) != codes.FailedPrecondition || status.Code(listing) != codes.FailedPrecondition || add != nil {
					t.Errorf("Get: %v, List: %v, Add: %v", get, listing, add)
				}
				return []string{fmt.Sprint(get), fmt.Sprint(add), fmt.Sprint(listing), fmt.Sprint(haggling)}
			})
		})
	}
}
