package nearcall_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

// A bazaar answers each offer, and lowers its price until it meets one.
type bazaar struct {
	orderspb.UnimplementedOrdersServer
}

func (bazaar) Haggle(stream grpc.BidiStreamingServer[orderspb.Offer, orderspb.Answer]) error {
	for ask := int32(500); ; ask -= 50 {
		offer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil // the client has called CloseSend
		}
		if err != nil {
			return err
		}
		accepted := offer.GetCents() >= ask
		if err := stream.Send(&orderspb.Answer{Accepted: accepted, AskCents: ask}); err != nil {
			return err
		}
		if accepted {
			return nil
		}
	}
}

// A bidirectional stream: client and handler send and receive in turn. Receiving until
// io.EOF ends the stream and frees what it holds.
func ExampleClientConn_NewStream_bidirectional() {
	srv := nearcall.NewServer()
	defer srv.Stop()
	orderspb.RegisterOrdersServer(srv, bazaar{})
	conn := srv.Client()
	defer conn.Close()

	stream, err := orderspb.NewOrdersClient(conn).Haggle(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, cents := range []int32{300, 400, 450} {
		if err := stream.Send(&orderspb.Offer{Item: "tea", Cents: cents}); err != nil {
			log.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("offer:", cents, "ask:", answer.GetAskCents(), "accepted:", answer.GetAccepted())
	}
	if err := stream.CloseSend(); err != nil {
		log.Fatal(err)
	}
	_, err = stream.Recv()
	fmt.Println(err)
	// Output:
	// offer: 300 ask: 500 accepted: false
	// offer: 400 ask: 450 accepted: false
	// offer: 450 ask: 400 accepted: true
	// EOF
}
