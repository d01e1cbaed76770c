package loop_test

import (
	"context"
	"fmt"
	"log"

	"google.golang.org/grpc"
	pb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/loop"
)

// A room sends what one member says to all members. Its handlers run on a loop, so it needs
// no lock.
type room struct {
	pb.UnimplementedTestServiceServer
	members map[chan string]bool
}

func (r *room) FullDuplexCall(s pb.TestService_FullDuplexCallServer) error {
	said := make(chan string)
	go func() {
		defer close(said)
		for {
			in, err := s.Recv()
			if err != nil {
				return
			}
			said <- string(in.GetPayload().GetBody())
		}
	}()

	heard := make(chan string, 16)
	r.members[heard] = true
	defer delete(r.members, heard)
	for {
		e, err := next(s.Context(), said, heard)
		switch {
		case err != nil:
			return err
		case e.left:
			return nil
		case e.said != "":
			for m := range r.members {
				m <- e.said
			}
		case e.heard != "":
			if err := s.Send(&pb.StreamingOutputCallResponse{Payload: &pb.Payload{Body: []byte(e.heard)}}); err != nil {
				return err
			}
		}
	}
}

// An event is what a member waits for.
type event struct {
	said, heard string
	left        bool
}

// next waits for the first of several events, as select does, and lets other tasks run in
// the meantime: another goroutine executes the select.
func next(ctx context.Context, said, heard <-chan string) (event, error) {
	return loop.Await(ctx, func(resume func(event, error)) {
		go func() {
			select {
			case text, ok := <-said:
				resume(event{said: text, left: !ok}, nil)
			case text := <-heard:
				resume(event{heard: text}, nil)
			case <-ctx.Done(): // Await has returned
			}
		}()
	})
}

// A handler that needs a select moves it into Await.
func ExampleAwait_select() {
	l := loop.New()
	srv := nearcall.NewServer()
	pb.RegisterTestServiceServer(srv.OnLoop(l), &room{members: make(map[chan string]bool)})
	conn := srv.Client()
	join := func() grpc.BidiStreamingClient[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse] {
		s, err := pb.NewTestServiceClient(conn).FullDuplexCall(context.Background())
		if err != nil {
			log.Fatal(err)
		}
		return s
	}
	say := func(text string) *pb.StreamingOutputCallRequest {
		return &pb.StreamingOutputCallRequest{Payload: &pb.Payload{Body: []byte(text)}}
	}

	ada := join()
	if err := ada.Send(say("hello?")); err != nil {
		log.Fatal(err)
	}
	if _, err := ada.Recv(); err != nil { // her own message
		log.Fatal(err)
	}
	grace := join() // possible because the handler of Ada's call waits in Await
	if err := grace.Send(say("hello!")); err != nil {
		log.Fatal(err)
	}
	heard, err := ada.Recv()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("Ada hears %q\n", heard.GetPayload().GetBody())

	conn.Close()
	srv.Stop()
	if err := l.Close(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output: Ada hears "hello!"
}
