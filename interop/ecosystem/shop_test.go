package ecosystem

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	pb "github.com/nearcall/nearcall/interop/ecosystem/internal/gatewaypb"
)

const service = "nearcall.ecosystem.shop.v1.Shop"

// A shop implements the Shop service. Its requests determine what it returns.
type shop struct {
	pb.UnimplementedShopServer
	nap   time.Duration      // how long Get and List take
	ended chan<- error       // if set, gets the context's error of each endless List
	seen  chan<- metadata.MD // if set, gets the metadata of each Get
}

func (s *shop) Get(ctx context.Context, req *pb.GetRequest) (*pb.Item, error) {
	time.Sleep(s.nap)
	if s.seen != nil {
		md, _ := metadata.FromIncomingContext(ctx)
		s.seen <- md
	}
	_ = grpc.SetHeader(ctx, metadata.Pairs("shop-header", "open"))
	_ = grpc.SetTrailer(ctx, metadata.Pairs("shop-trailer", "closed"))
	switch name := req.GetName(); name {
	case "panic":
		panic("out of tea")
	case "missing":
		st, err := status.New(codes.NotFound, "no such item").WithDetails(&errdetails.ErrorInfo{Reason: "SOLD_OUT"})
		if err != nil {
			return nil, err
		}
		return nil, st.Err()
	case "forever":
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	default:
		if code, ok := strings.CutPrefix(name, "code-"); ok {
			var c codes.Code
			if err := c.UnmarshalJSON([]byte(code)); err != nil {
				return nil, err
			}
			return nil, status.Error(c, "as asked")
		}
		return &pb.Item{Name: name, Price: int64(req.GetQuantity()) * 100}, nil
	}
}

func (s *shop) Add(_ context.Context, item *pb.Item) (*pb.Item, error) {
	if item.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "an item needs a name")
	}
	return item, nil
}

func (s *shop) List(req *pb.ListRequest, stream grpc.ServerStreamingServer[pb.Item]) error {
	time.Sleep(s.nap)
	for i := range req.GetCount() {
		if err := stream.Send(&pb.Item{Name: fmt.Sprint("item ", i), Price: int64(i)}); err != nil {
			return err
		}
	}
	switch why := req.GetFailAfter(); why {
	case "":
		return nil
	case "panic":
		panic("out of tea")
	case "never":
		<-stream.Context().Done()
		if s.ended != nil {
			s.ended <- stream.Context().Err()
		}
		return status.FromContextError(stream.Context().Err()).Err()
	default:
		return status.Error(codes.ResourceExhausted, why)
	}
}

func (s *shop) Import(stream grpc.ClientStreamingServer[pb.Item, pb.Imported]) error {
	sum := &pb.Imported{}
	for {
		item, err := stream.Recv()
		if err == io.EOF {
			return stream.SendAndClose(sum)
		}
		if err != nil {
			return err
		}
		sum.Count++
		sum.Price += item.GetPrice()
	}
}

func (s *shop) Haggle(stream grpc.BidiStreamingServer[pb.Item, pb.Item]) error {
	for {
		item, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&pb.Item{Name: item.GetName(), Price: item.GetPrice() / 2}); err != nil {
			return err
		}
	}
}

func registerShop(s *shop) func(reflection.GRPCServer) {
	return func(srv reflection.GRPCServer) { pb.RegisterShopServer(srv, s) }
}

// shopAround makes calls of each kind, and some that fail. It waits until each call
// has ended, and returns the results.
func shopAround(ctx context.Context, t *testing.T, conn grpc.ClientConnInterface) []string {
	t.Helper()
	client := pb.NewShopClient(conn)
	var notes []string
	note := func(what string, err error, v any) {
		notes = append(notes, fmt.Sprintf("%s: %v, %v", what, status.Code(err), v))
	}
	item, err := client.Get(ctx, &pb.GetRequest{Name: "tea", Quantity: 2})
	note("Get", err, item.GetPrice())
	_, err = client.Get(ctx, &pb.GetRequest{Name: "missing"})
	note("Get missing", err, status.Convert(err).Message())

	for _, why := range []string{"", "closing time"} {
		list, err := client.List(ctx, &pb.ListRequest{Count: 3, FailAfter: why})
		if err != nil {
			t.Fatal(err)
		}
		n, err := drain(list.Recv)
		note("List", err, n)
	}

	imports, err := client.Import(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if err := imports.Send(&pb.Item{Name: "tea", Price: int64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	sum, err := imports.CloseAndRecv()
	note("Import", err, fmt.Sprint(sum.GetCount(), " for ", sum.GetPrice()))

	haggle, err := client.Haggle(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if err := haggle.Send(&pb.Item{Name: "tea", Price: int64(20 * i)}); err != nil {
			t.Fatal(err)
		}
		item, err := haggle.Recv()
		note("Haggle", err, item.GetPrice())
	}
	if err := haggle.CloseSend(); err != nil {
		t.Fatal(err)
	}
	n, err := drain(haggle.Recv)
	note("Haggle", err, n)
	return notes
}

// drain receives until the stream ends. It returns the number of messages and the
// error, or nil for io.EOF.
func drain[T any](recv func() (T, error)) (n int, err error) {
	for ; ; n++ {
		if _, err := recv(); err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
}
