package orders_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall"
	after "github.com/nearcall/nearcall/examples/orders/after"
	before "github.com/nearcall/nearcall/examples/orders/before"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/examples/orders/shop"
)

const secret = "open sesame"

func stock() map[string]int32 { return map[string]int32{"tea": 10, "cup": 1} }

// A combination is a server, and clients that dial it at its listener.
type combination struct {
	listen func() net.Listener
	server func(*slog.Logger) (srv server, ship func(id int64))
	dial   func(lis net.Listener, token string) client
}

type server interface {
	Serve(net.Listener) error
	GracefulStop()
}

type client interface {
	orderspb.OrdersClient
	Close() error
}

func grpcServer(log *slog.Logger) (server, func(int64)) {
	s := shop.New(stock())
	return before.NewServer(s, secret, log), s.Ship
}

func nearcallServer(log *slog.Logger) (server, func(int64)) {
	s := shop.New(stock())
	return after.NewServer(s, secret, log), s.Ship
}

func onTCP() net.Listener { return must(net.Listen("tcp", "localhost:0")) }

func onBufconn() net.Listener { return bufconn.Listen(1 << 20) }

func inProcess() net.Listener { return must(nearcall.Listen("inproc:orders")) }

// grpcClient is the program's client before the migration.
func grpcClient(lis net.Listener, token string) client {
	return must(before.Dial(lis.Addr().String(), token))
}

// nearcallClient returns the migrated program's client, which dials prefix and the address.
func nearcallClient(prefix string) func(net.Listener, string) client {
	return func(lis net.Listener, token string) client {
		return must(after.Dial(prefix+lis.Addr().String(), token))
	}
}

func inProcessClient(_ net.Listener, token string) client {
	return must(after.Dial("inproc:orders", token))
}

// bufconnClient is the client of a renamed test on bufconn.
func bufconnClient(lis net.Listener, token string) client {
	return must(after.Dial("passthrough:///bufnet", token, nearcall.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return lis.(*bufconn.Listener).DialContext(ctx)
	})))
}

// TestAllSeeTheSame makes the same calls to the program before the migration, after it, and
// halfway: servers move over first, and clients later.
func TestAllSeeTheSame(t *testing.T) {
	oracle := combination{onTCP, grpcServer, grpcClient}.run(t)
	if len(oracle) < 20 {
		t.Fatalf("the oracle's transcript is short:\n%s", strings.Join(oracle, "\n"))
	}
	for name, c := range map[string]combination{
		"moved, in process":                {inProcess, nearcallServer, inProcessClient},
		"moved, with a target of nearcall": {onTCP, nearcallServer, nearcallClient("tcp:")},
		"moved, with the old target":       {onTCP, nearcallServer, nearcallClient("")},
		"moved, on bufconn":                {onBufconn, nearcallServer, bufconnClient},
		"only the server moved":            {onTCP, nearcallServer, grpcClient},
		"only the client moved":            {onTCP, grpcServer, nearcallClient("")},
	} {
		t.Run(name, func(t *testing.T) {
			moved := c.run(t)
			for i := range max(len(oracle), len(moved)) {
				was, is := at(oracle, i), at(moved, i)
				if was != is {
					t.Errorf("step %d\n grpc-go: %s\nnearcall: %s", i, was, is)
				}
			}
		})
	}
}

// TestOnePortServesOldAndNewClients lets clients of both kinds work on the same orders.
func TestOnePortServesOldAndNewClients(t *testing.T) {
	lis := onTCP()
	srv, ship := nearcallServer(slog.New(slog.DiscardHandler))
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	old, moved := grpcClient(lis, secret), nearcallClient("tcp:")(lis, secret)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()

	for _, clients := range [][2]client{{old, moved}, {moved, old}} {
		order, err := clients[0].Place(ctx, &orderspb.PlaceRequest{Customer: "ann", Item: "tea", Quantity: 1})
		if err != nil {
			t.Fatal(err)
		}
		ship(order.GetId())
		got, err := clients[1].Await(ctx, &orderspb.AwaitRequest{Id: order.GetId()})
		if err != nil || got.GetCustomer() != "ann" || !got.GetShipped() {
			t.Errorf("Await returns %v, %v", got, err)
		}
	}
	old.Close()
	moved.Close()
	srv.GracefulStop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// resetAtDeadline is grpc-go's message for a deadline that its server noticed before its
// client did. The code is the same.
const resetAtDeadline = "stream terminated by RST_STREAM with error code: CANCEL"

// run returns the transcript of the program.
func (c combination) run(t *testing.T) []string {
	lis := c.listen()
	var log bytes.Buffer
	srv, ship := c.server(logger(&log))
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()

	good, bad := c.dial(lis, secret), c.dial(lis, "open barley")
	seen := calls(t, good, bad, ship)
	good.Close()
	bad.Close()
	srv.GracefulStop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	return append(seen, logged(&log)...)
}

// calls makes the calls and returns a transcript of their results.
func calls(t *testing.T, client, badClient orderspb.OrdersClient, ship func(id int64)) []string {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var seen transcript

	// Unary calls, with headers and trailers.
	place := func(step string, client orderspb.OrdersClient, req *orderspb.PlaceRequest) {
		var header, trailer metadata.MD
		order, err := client.Place(ctx, req, grpc.Header(&header), grpc.Trailer(&trailer))
		seen.reply(step, order, err)
		seen.md(step+" header", header)
		seen.md(step+" trailer", trailer)
	}
	place("place", client, &orderspb.PlaceRequest{Customer: "ann", Item: "tea", Quantity: 2})
	place("place again", client, &orderspb.PlaceRequest{Customer: "ann", Item: "tea", Quantity: 3})
	place("too many", client, &orderspb.PlaceRequest{Customer: "bob", Item: "cup", Quantity: 2})
	place("none", client, &orderspb.PlaceRequest{Customer: "bob", Item: "cup"})
	place("larger than the server takes", client, &orderspb.PlaceRequest{Item: strings.Repeat("x", 70<<10), Quantity: 1})
	place("wrong token", badClient, &orderspb.PlaceRequest{Customer: "eve", Item: "tea", Quantity: 1})

	// A deadline that passes, and one that does not.
	short, cancelShort := context.WithTimeout(ctx, 20*time.Millisecond)
	_, err := client.Await(short, &orderspb.AwaitRequest{Id: 1})
	cancelShort()
	seen.reply("await, too short", nil, err)
	ship(1)
	order, err := client.Await(ctx, &orderspb.AwaitRequest{Id: 1})
	seen.reply("await", order, err)
	_, err = client.Await(ctx, &orderspb.AwaitRequest{Id: 99})
	seen.reply("await what is not there", nil, err)

	// A call that its caller cancels.
	gone, give := context.WithCancel(ctx)
	time.AfterFunc(10*time.Millisecond, give)
	_, err = client.Await(gone, &orderspb.AwaitRequest{Id: 2})
	seen.reply("await, given up", nil, err)

	// A server stream.
	list, err := client.List(ctx, &orderspb.ListRequest{Customer: "ann"})
	seen.reply("list", nil, err)
	for err == nil {
		order, err = list.Recv()
		seen.reply("list", order, err)
	}
	seen.md("list trailer", list.Trailer())
	list, err = badClient.List(ctx, &orderspb.ListRequest{Customer: "ann"})
	if err == nil {
		_, err = list.Recv()
	}
	seen.reply("list, wrong token", nil, err)

	// A client stream.
	imp, err := client.Import(ctx)
	seen.reply("import", nil, err)
	for range 7 {
		seen.reply("import one", nil, imp.Send(&orderspb.PlaceRequest{Customer: "cy", Item: "tea", Quantity: 1}))
	}
	summary, err := imp.CloseAndRecv()
	seen.reply("import", summary, err)

	// A bidi stream: once until the offer is accepted, once until the client closes its side.
	for _, offers := range [][]int32{{100, 300, 400}, {100}} {
		haggle, err := client.Haggle(ctx)
		seen.reply("haggle", nil, err)
		for _, cents := range offers {
			err := haggle.Send(&orderspb.Offer{Item: "cup", Cents: cents})
			seen.reply("offer", nil, err)
			answer, err := haggle.Recv()
			seen.reply("answer", answer, err)
		}
		seen.reply("no more", nil, haggle.CloseSend())
		_, err = haggle.Recv()
		seen.reply("haggle ends", nil, err)
	}
	return seen
}

// A transcript is what a client observed, step by step, without what differs from run to run.
type transcript []string

func (tr *transcript) add(format string, args ...any) {
	*tr = append(*tr, fmt.Sprintf(format, args...))
}

func (tr *transcript) reply(step string, m proto.Message, err error) {
	switch {
	case errors.Is(err, io.EOF):
		tr.add("%s: end", step)
	case err != nil:
		st := status.Convert(err)
		msg := st.Message()
		if st.Code() == codes.DeadlineExceeded && msg == resetAtDeadline {
			msg = context.DeadlineExceeded.Error()
		}
		tr.add("%s: %s: %s %v", step, st.Code(), msg, st.Details())
	case m != nil && m.ProtoReflect().IsValid():
		tr.add("%s: %s", step, strings.ReplaceAll(protojson.MarshalOptions{}.Format(m), " ", ""))
	default:
		tr.add("%s: ok", step)
	}
}

func (tr *transcript) md(step string, md metadata.MD) {
	md = md.Copy()
	md.Delete("content-type")            // only HTTP/2 has it
	md.Delete("grpc-status-details-bin") // how details travel over HTTP/2
	tr.add("%s: %v", step, map[string][]string(md))
}

// logger returns a logger that omits what differs from run to run.
func logger(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "took" {
				return slog.Attr{}
			}
			return a
		},
	}))
}

// logged returns the lines of a log, sorted, except those of Await: if the caller of a call
// gives up, the code at the server depends on the clocks of both.
func logged(log *bytes.Buffer) []string {
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, "/Await") })
	slices.Sort(lines)
	return lines
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(nothing)"
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
