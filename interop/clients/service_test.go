package clients

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/loop"
)

// What Await waits for, by the order's number.
const (
	forEver    = 1 // the end of its context
	forAnEnd   = 2 // the end of a call that waited for ever
	forOthers  = 3 // until there are as many such calls as atOnce
	atOnce     = 500
	listLength = 100
)

// A service is what the clients call. It returns metadata under the keys x-echo, in the
// header, and x-echo-bin, in the trailer.
type service struct {
	orderspb.UnimplementedOrdersServer
	onLoop bool

	mu      sync.Mutex
	ended   int      // calls that waited for ever, and whose end nobody has waited for
	endings []func() // resume calls that wait for such an end
	others  []func() // resume calls that wait for others
}

// Place returns the order. If the quantity is 0 it fails, with a detail.
func (s *service) Place(ctx context.Context, req *orderspb.PlaceRequest) (*orderspb.Order, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	header := metadata.MD{"x-echo": md["x-echo"]}
	if encoding, ok := ctx.Value(encodingKey{}).(*string); ok {
		header.Set("request-encoding", *encoding)
	}
	if err := errors.Join(grpc.SetHeader(ctx, header), grpc.SetTrailer(ctx, metadata.MD{"x-echo-bin": md["x-echo-bin"]})); err != nil {
		return nil, err
	}
	if req.GetQuantity() == 0 {
		st, err := status.New(codes.ResourceExhausted, "too few: ä").WithDetails(&orderspb.Shortage{Item: req.GetItem(), Wanted: 2, Left: 1})
		if err != nil {
			return nil, err
		}
		return nil, st.Err()
	}
	return &orderspb.Order{Id: 1, Customer: req.GetCustomer(), Item: req.GetItem(), Quantity: req.GetQuantity()}, nil
}

// Await waits for what the number says.
func (s *service) Await(ctx context.Context, req *orderspb.AwaitRequest) (*orderspb.Order, error) {
	var err error
	switch req.GetId() {
	case forEver:
		err = s.waitForEver(ctx)
	case forAnEnd:
		err = s.wait(ctx, s.awaitEnd)
	case forOthers:
		err = s.wait(ctx, s.awaitOthers)
	default:
		err = status.Error(codes.InvalidArgument, "there is nothing to wait for")
	}
	if err != nil {
		return nil, err
	}
	return &orderspb.Order{Id: req.GetId()}, nil
}

// List sends orders. For the customer "waits" it sends one, and waits for ever.
func (s *service) List(req *orderspb.ListRequest, stream grpc.ServerStreamingServer[orderspb.Order]) error {
	for i := range listLength {
		if err := stream.Send(&orderspb.Order{Id: int64(i), Customer: req.GetCustomer()}); err != nil {
			return err
		}
		if req.GetCustomer() == "waits" {
			return s.waitForEver(stream.Context())
		}
	}
	return nil
}

// Import counts what it receives.
func (s *service) Import(stream grpc.ClientStreamingServer[orderspb.PlaceRequest, orderspb.ImportReply]) error {
	reply := &orderspb.ImportReply{}
	for {
		switch _, err := stream.Recv(); {
		case errors.Is(err, io.EOF):
			return stream.SendAndClose(reply)
		case err != nil:
			return err
		}
		reply.Placed++
	}
}

// Haggle answers each offer with what it offers.
func (s *service) Haggle(stream grpc.BidiStreamingServer[orderspb.Offer, orderspb.Answer]) error {
	for {
		offer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&orderspb.Answer{AskCents: offer.GetCents()}); err != nil {
			return err
		}
	}
}

// wait waits until resume is called, without blocking the loop if there is one.
func (s *service) wait(ctx context.Context, start func(resume func())) error {
	if s.onLoop {
		_, err := loop.Await(ctx, func(resume func(struct{}, error)) { start(func() { resume(struct{}{}, nil) }) })
		return err
	}
	over := make(chan struct{})
	start(sync.OnceFunc(func() { close(over) }))
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (s *service) waitForEver(ctx context.Context) error {
	err := s.wait(ctx, func(func()) {})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended++
	s.resumeEndings()
	return err
}

func (s *service) awaitEnd(resume func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endings = append(s.endings, resume)
	s.resumeEndings()
}

// resumeEndings resumes a call for each end. s.mu must be locked.
func (s *service) resumeEndings() {
	for s.ended > 0 && len(s.endings) > 0 {
		s.endings[0]()
		s.endings = s.endings[1:]
		s.ended--
	}
}

func (s *service) awaitOthers(resume func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.others = append(s.others, resume); len(s.others) < atOnce {
		return
	}
	for _, resume := range s.others {
		resume()
	}
	s.others = nil
}

type encodingKey struct{}

// encodings is a stats handler that puts the encoding of a request into its context.
type encodings struct{}

func (encodings) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, encodingKey{}, new(string))
}

func (encodings) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if in, ok := event.(*stats.InHeader); ok {
		*ctx.Value(encodingKey{}).(*string) = in.Compression
	}
}

func (encodings) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (encodings) HandleConn(context.Context, stats.ConnStats) {}
