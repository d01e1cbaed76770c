package actor

import (
	"context"
	"io"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/actor/actorpb"
	"github.com/nearcall/nearcall/internal/testing/needs"
	"github.com/nearcall/nearcall/loop"
)

// networks are the networks that reach the market. "" is in process.
func networks() []string {
	found := []string{"", "tcp", "unix"}
	if runtime.GOOS == "linux" {
		found = append(found, "shm")
	}
	return found
}

// A market is an exchange with its own loop and server.
type market struct {
	*Exchange
	srv    *nearcall.Server
	target string // "" in process
	opts   []nearcall.DialOption
}

// open opens a market on network. shut closes it.
func open(t testing.TB, network string) *market {
	t.Helper()
	l := loop.New()
	m := &market{Exchange: NewExchange(l), srv: nearcall.NewServer()}
	pb.RegisterOrderBookServer(m.srv.OnLoop(l), m.Exchange)
	target := ""
	switch network {
	case "":
		return m
	case "tcp":
		target = "tcp:127.0.0.1:0"
	case "unix":
		needs.UnixSockets(t)
		target = "unix:" + filepath.Join(t.TempDir(), "s")
		m.opts = append(m.opts, nearcall.WithDisableSharedMemory())
	default:
		target = network + ":" + filepath.Join(t.TempDir(), "s")
	}
	lis, err := nearcall.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	m.target = lis.Target()
	go func() { _ = m.srv.Serve(lis) }()
	return m
}

// shut ends everything that open started, and waits for it.
func (m *market) shut(t testing.TB) {
	t.Helper()
	m.srv.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := m.loop.Close(ctx); err != nil {
		t.Errorf("the loop: %v", err)
	}
}

// dial returns a client with its own connection, and a function that closes the connection.
func (m *market) dial(t testing.TB, opts ...nearcall.DialOption) (pb.OrderBookClient, func()) {
	t.Helper()
	opts = append(m.opts[:len(m.opts):len(m.opts)], opts...)
	conn := m.srv.Client(opts...)
	if m.target != "" {
		_ = conn.Close()
		var err error
		if conn, err = nearcall.NewClient(m.target, opts...); err != nil {
			t.Fatal(err)
		}
	}
	return pb.NewOrderBookClient(conn), func() { _ = conn.Close() }
}

// overAll runs f for a market on each network, with a context that ends before the test times
// out.
func overAll(t *testing.T, f func(ctx context.Context, t *testing.T, m *market)) {
	all := networks()
	if testing.Short() {
		all = all[:1]
	}
	for _, network := range all {
		t.Run("network="+network, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			m := open(t, network)
			defer m.shut(t)
			f(ctx, t, m)
		})
	}
}

// A session is the trader's side of a session.
type session struct {
	t      testing.TB
	stream grpc.BidiStreamingClient[pb.Request, pb.Event]
}

func enter(ctx context.Context, t testing.TB, client pb.OrderBookClient) *session {
	t.Helper()
	stream, err := client.Trade(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &session{t, stream}
}

func ordering(id uint64, s pb.Side, price, quantity int64) *pb.Request {
	return &pb.Request{Kind: &pb.Request_Order{Order: &pb.Order{Id: id, Side: s, Price: price, Quantity: quantity}}}
}

func cancelling(id uint64) *pb.Request {
	return &pb.Request{Kind: &pb.Request_Cancel{Cancel: &pb.Cancel{Id: id}}}
}

func (s *session) send(in *pb.Request) {
	s.t.Helper()
	if err := s.stream.Send(in); err != nil {
		s.t.Fatal(err)
	}
}

func (s *session) receive() *pb.Event {
	s.t.Helper()
	e, err := s.stream.Recv()
	if err != nil {
		s.t.Fatal(err)
	}
	return e
}

// places sends an order and waits until it is accepted.
func (s *session) places(id uint64, side pb.Side, price, quantity int64) {
	s.t.Helper()
	s.send(ordering(id, side, price, quantity))
	if e := s.receive(); e.GetAccepted().GetId() != id {
		s.t.Fatalf("the answer to order %d is %v", id, e)
	}
}

// wantRejected sends in and wants a rejection with code. The session continues.
func (s *session) wantRejected(in *pb.Request, id uint64, code codes.Code) {
	s.t.Helper()
	s.send(in)
	if r := s.receive().GetRejected(); r == nil || r.Id != id || codes.Code(r.Code) != code || r.Reason == "" {
		s.t.Errorf("%v is answered with %v, want %v", in, r, code)
	}
}

// wantEnd receives until the stream ends, and wants code.
func (s *session) wantEnd(code codes.Code) []*pb.Event {
	s.t.Helper()
	var rest []*pb.Event
	for {
		e, err := s.stream.Recv()
		if err == nil {
			rest = append(rest, e)
			continue
		}
		if err == io.EOF {
			err = nil
		}
		wantCode(s.t, err, code)
		return rest
	}
}

func totals(ctx context.Context, t testing.TB, client pb.OrderBookClient) *pb.BookTotals {
	t.Helper()
	got, err := client.Totals(ctx, &pb.TotalsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// watch returns a feed of all trades from now on.
func watch(ctx context.Context, t testing.TB, client pb.OrderBookClient) grpc.ServerStreamingClient[pb.Trades] {
	t.Helper()
	feed, err := client.Watch(ctx, &pb.WatchRequest{})
	if err == nil {
		_, err = feed.Header()
	}
	if err != nil {
		t.Fatal(err)
	}
	return feed
}

// same reports whether two messages are equal.
func same(t testing.TB, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Errorf("got\n%v, want\n%v", got, want)
	}
}

func wantCode(t testing.TB, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("the error is %v, want %v", err, want)
	}
}
