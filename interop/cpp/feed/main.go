// Command feed serves a feed of prices. The client in cpp/examples/feed watches it.
//
//	go -C interop/cpp run ./feed unix:/tmp/feed.sock
package main

import (
	"context"
	"fmt"
	"log"
	"math"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/interop/cpp/feedpb"
)

type feed struct {
	feedpb.UnimplementedFeedServer
}

// price is that of a symbol at a time: a wave.
func price(symbol string, at time.Time) float64 {
	return 100 + float64(len(symbol)) + 10*math.Sin(float64(at.UnixMilli())/1000)
}

func (feed) Last(_ context.Context, q *feedpb.LastRequest) (*feedpb.Tick, error) {
	if q.GetSymbol() == "" {
		return nil, status.Error(codes.InvalidArgument, "a symbol is needed")
	}
	now := time.Now()
	return &feedpb.Tick{Symbol: q.GetSymbol(), Price: price(q.GetSymbol(), now), Sent: now.UnixNano()}, nil
}

func (feed) Watch(q *feedpb.WatchRequest, s grpc.ServerStreamingServer[feedpb.Tick]) error {
	if q.GetSymbol() == "" {
		return status.Error(codes.InvalidArgument, "a symbol is needed")
	}
	var next <-chan time.Time
	if q.GetRate() > 0 {
		ticker := time.NewTicker(time.Second / time.Duration(q.GetRate()))
		defer ticker.Stop()
		next = ticker.C
	}
	for n := int64(1); ; n++ {
		if next != nil {
			select {
			case <-next:
			case <-s.Context().Done():
				return s.Context().Err()
			}
		}
		now := time.Now()
		t := &feedpb.Tick{Symbol: q.GetSymbol(), Number: n, Price: price(q.GetSymbol(), now), Sent: now.UnixNano()}
		if err := s.Send(t); err != nil {
			return err
		}
	}
}

func main() {
	target := "unix:/tmp/feed.sock"
	if len(os.Args) > 1 {
		target = os.Args[1]
	}
	lis, err := nearcall.Listen(target)
	if err != nil {
		log.Fatal(err)
	}
	srv := nearcall.NewServer()
	feedpb.RegisterFeedServer(srv, feed{})
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-stop
		srv.GracefulStop()
	}()
	fmt.Println("serving at", target)
	if err := srv.Serve(lis); err != nil {
		log.Fatal(err)
	}
}
