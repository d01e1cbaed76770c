package loop_test

import (
	"context"
	"fmt"
	"log"
	"strings"
	"time"

	pb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/loop"
)

// A hangingRoom is written for handlers with a goroutine each. It is wrong on a loop: while
// one member waits in the select, no other member's handler can run.
type hangingRoom struct {
	pb.UnimplementedTestServiceServer
	members map[chan string]bool
}

func (r *hangingRoom) FullDuplexCall(s pb.TestService_FullDuplexCallServer) error {
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
		select { // holds the loop
		case text, ok := <-said:
			if !ok {
				return nil
			}
			for m := range r.members {
				m <- text
			}
		case text := <-heard:
			if err := s.Send(&pb.StreamingOutputCallResponse{Payload: &pb.Payload{Body: []byte(text)}}); err != nil {
				return err
			}
		}
	}
}

// A watchdog reports a handler that blocks its loop by selecting on channels.
func ExampleWatchdog_select() {
	reported := make(chan string, 1)
	l := loop.New(loop.Watchdog(20*time.Millisecond, func(_ time.Duration, stack []byte) {
		select {
		case reported <- string(stack):
		default: // the first is enough
		}
	}))
	srv := nearcall.NewServer()
	pb.RegisterTestServiceServer(srv.OnLoop(l), &hangingRoom{members: make(map[chan string]bool)})
	conn := srv.Client()
	s, err := pb.NewTestServiceClient(conn).FullDuplexCall(context.Background())
	if err != nil {
		log.Fatal(err)
	}

	stack := <-reported
	state, _, _ := strings.Cut(stack, "\n")
	fmt.Println("it waits in a select:", strings.Contains(state, "[select"))
	fmt.Println("of the handler:", strings.Contains(stack, "(*hangingRoom).FullDuplexCall"))

	if err := s.CloseSend(); err != nil { // ends the handler
		log.Fatal(err)
	}
	conn.Close()
	srv.Stop()
	if err := l.Close(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// it waits in a select: true
	// of the handler: true
}
