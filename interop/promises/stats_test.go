package promises

import (
	"context"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

type tappedKey struct{}

// tapHandle: InTapHandle sees each call, refuses it with its status, and may return its context.
func tapHandle(t *testing.T, f *face) {
	s := &service{unary: func(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		if ctx.Value(tappedKey{}) != "tapped" {
			t.Error("the handler has not got the tap handle's context")
		}
		return &pb.SimpleResponse{}, nil
	}}
	var mu sync.Mutex
	var asked []string
	c, _ := f.start(t, s, nearcall.InTapHandle(func(ctx context.Context, info *tap.Info) (context.Context, error) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, info.FullMethodName)
		if len(info.Header["refuse"]) > 0 {
			return nil, status.Error(codes.ResourceExhausted, "too many")
		}
		return context.WithValue(ctx, tappedKey{}, "tapped"), nil
	})).client()
	_, err := c.unary(t.Context(), new(pb.SimpleRequest))
	wantCode(t, "a call", err, codes.OK)
	refused := metadata.AppendToOutgoingContext(t.Context(), "refuse", "1")
	_, err = c.unary(refused, new(pb.SimpleRequest))
	wantCode(t, "a call that is refused", err, codes.ResourceExhausted)
	wantCode(t, "a stream that is refused", c.upload(refused)(), codes.ResourceExhausted)
	mu.Lock()
	defer mu.Unlock()
	unary := pb.TestService_UnaryCall_FullMethodName
	if want := []string{unary, unary, f.uploads()}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
}

// statsHandler: a stats handler is told of the begin and the end of each connection and each call, and
// its contexts reach handlers.
func statsHandler(t *testing.T, f *face) {
	events := newEvents()
	s := &service{
		unary: func(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			if ctx.Value(callKey{}) == nil || ctx.Value(connKey{}) == nil {
				t.Error("the handler's context was not tagged")
			}
			return &pb.SimpleResponse{}, nil
		},
		upload: func(grpc.ServerStream) error { return status.Error(codes.Aborted, "") },
	}
	w := f.start(t, s, nearcall.StatsHandler(events))
	c := w.dial(w, new(line))
	_, err := c.unary(t.Context(), new(pb.SimpleRequest))
	wantCode(t, "a call", err, codes.OK)
	wantCode(t, "a stream", c.upload(t.Context())(), codes.Aborted)
	if err := c.close(); err != nil {
		t.Error(err)
	}
	leak.Eventually(t, "all ends are told", func() bool {
		events.mu.Lock()
		defer events.mu.Unlock()
		return events.ends == 2 && events.conns == 0
	})
	events.mu.Lock()
	defer events.mu.Unlock()
	for method, want := range map[string][]string{
		pb.TestService_UnaryCall_FullMethodName: {"InHeader", "Begin", "InPayload", "OutHeader", "OutPayload", "OutTrailer", "End OK"},
		f.uploads():                             {"InHeader", "Begin", "OutTrailer", "End Aborted"},
	} {
		got := events.calls[method]
		if f.noOutHeader {
			want = slices.DeleteFunc(want, func(e string) bool { return e == "OutHeader" })
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", method, got, want)
		}
	}
	if events.begun == 0 {
		t.Error("no connection has begun")
	}
}

type (
	callKey struct{}
	connKey struct{}
)

// events is a stats handler that keeps what it is told.
type events struct {
	mu    sync.Mutex
	begun int // connections
	conns int // those that have not ended
	ends  int
	calls map[string][]string // by method
}

func newEvents() *events { return &events{calls: make(map[string][]string)} }

func (e *events) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, callKey{}, info.FullMethodName)
}

func (e *events) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, connKey{}, true)
}

func (e *events) HandleConn(_ context.Context, s stats.ConnStats) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := s.(*stats.ConnBegin); ok {
		e.begun++
		e.conns++
	} else {
		e.conns--
	}
}

func (e *events) HandleRPC(ctx context.Context, s stats.RPCStats) {
	event := ""
	switch s := s.(type) {
	case *stats.InHeader:
		event = "InHeader"
	case *stats.Begin:
		event = "Begin"
	case *stats.InPayload:
		event = "InPayload"
	case *stats.OutHeader:
		event = "OutHeader"
	case *stats.OutPayload:
		event = "OutPayload"
	case *stats.OutTrailer:
		event = "OutTrailer"
	case *stats.End:
		event = "End " + status.Code(s.Error).String()
	default:
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if s, ok := s.(*stats.End); ok && !s.Client {
		e.ends++
	}
	method := ctx.Value(callKey{}).(string)
	e.calls[method] = append(e.calls[method], event)
}
