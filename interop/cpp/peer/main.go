// Command peer is nearcall in Go for the tournament of the C++ library (cpp/bench): `peer serve TARGET` prints the target that clients use,
// and `peer call TARGET ROW SECONDS` prints the microseconds that an operation of the row takes.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/interop/cpp/benchpb"
)

const (
	messages    = 100 // of a stream
	callers     = 64
	largest     = 64 << 20
	connections = 16
)

type service struct {
	pb.UnimplementedBenchServer
}

func (service) Ping(context.Context, *pb.Empty) (*pb.Empty, error) { return &pb.Empty{}, nil }

func (service) Echo(_ context.Context, in *pb.Blob) (*pb.Blob, error) {
	return &pb.Blob{Value: in.GetValue()}, nil
}

func (service) EchoEmployee(_ context.Context, in *pb.Employee) (*pb.Employee, error) { return in, nil }

func (service) Down(in *pb.Blob, s grpc.ServerStreamingServer[pb.Blob]) error {
	for range messages {
		if err := s.Send(in); err != nil {
			return err
		}
	}
	return nil
}

func (service) Up(s grpc.ClientStreamingServer[pb.Blob, pb.Empty]) error {
	for {
		if _, err := s.Recv(); err == io.EOF {
			return s.SendAndClose(&pb.Empty{})
		} else if err != nil {
			return err
		}
	}
}

func serve(target string) error {
	srv := nearcall.NewServer(nearcall.MaxRecvMsgSize(largest))
	pb.RegisterBenchServer(srv, service{})
	lis, err := nearcall.Listen(target)
	if err != nil {
		return err
	}
	if strings.HasPrefix(target, "tcp:") {
		target = "tcp:" + lis.Addr().String()
	}
	fmt.Println(target)
	return srv.Serve(lis)
}

func call(target, row string, span time.Duration) error {
	n := 1
	if row == "64callers16" {
		n = connections
	}
	options := []nearcall.DialOption{nearcall.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest))}
	if strings.HasPrefix(target, "unix:") {
		options = append(options, nearcall.WithDisableSharedMemory()) // shm: has rows of its own
	}
	stubs := make([]pb.BenchClient, n)
	for i := range stubs {
		conn, err := nearcall.NewClient(target, options...)
		if err != nil {
			return err
		}
		defer conn.Close()
		stubs[i] = pb.NewBenchClient(conn)
	}
	ctx := context.Background()
	for _, s := range stubs {
		if _, err := s.Ping(ctx, &pb.Empty{}); err != nil {
			return err
		}
	}
	size := 32
	switch row {
	case "1MB":
		size = 1 << 20
	case "10MB":
		size = 10 << 20
	}
	blob := &pb.Blob{Value: make([]byte, size)}
	operation := operations(stubs[0], blob)[row]
	switch {
	case row == "idle":
		time.Sleep(span)
		return nil
	case strings.HasPrefix(row, "64callers"):
		return together(stubs, blob, span)
	case operation == nil:
		operation = operations(stubs[0], blob)["32B"]
	}
	done, begin := 0, time.Time{}
	for started := time.Now(); ; done++ {
		now := time.Now()
		if begin.IsZero() && now.Sub(started) > span/10 && done > 2 {
			begin, done = now, 0
		}
		if !begin.IsZero() && done > 2 && now.Sub(begin) > span {
			fmt.Printf("%.3f\n", float64(now.Sub(begin).Nanoseconds())/1e3/float64(done))
			return nil
		}
		if err := operation(ctx); err != nil {
			return err
		}
	}
}

// operations returns what each row does once.
func operations(stub pb.BenchClient, blob *pb.Blob) map[string]func(context.Context) error {
	employee := &pb.Employee{
		Person:  &pb.Person{Name: "Ada Lovelace", Age: 36, Email: "ada@example.com"},
		Address: &pb.Address{Street: "12 St James's Square", City: "London", Country: "United Kingdom", Zip: 10115},
		Id:      1001, Salary: 75000.5, Skills: []string{"C++", "Python", "JavaScript", "Rust", "Go"},
	}
	return map[string]func(context.Context) error{
		"empty": func(ctx context.Context) error {
			_, err := stub.Ping(ctx, &pb.Empty{})
			return err
		},
		"32B": func(ctx context.Context) error {
			_, err := stub.Echo(ctx, blob)
			return err
		},
		"nested": func(ctx context.Context) error {
			_, err := stub.EchoEmployee(ctx, employee)
			return err
		},
		"down100": func(ctx context.Context) error {
			s, err := stub.Down(ctx, blob)
			for err == nil {
				_, err = s.Recv()
			}
			if err == io.EOF {
				return nil
			}
			return err
		},
		"up100": func(ctx context.Context) error {
			s, err := stub.Up(ctx)
			for i := 0; i < messages && err == nil; i++ {
				err = s.Send(blob)
			}
			if err != nil {
				return err
			}
			_, err = s.CloseAndRecv()
			return err
		},
	}
}

// together makes calls from several goroutines, and prints the time of one.
func together(stubs []pb.BenchClient, blob *pb.Blob, span time.Duration) error {
	var calls atomic.Int64
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	for i := range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := stubs[i%len(stubs)].Echo(context.Background(), blob); err != nil {
					log.Fatal(err)
				}
				calls.Add(1)
			}
		})
	}
	time.Sleep(span / 10)
	before, begin := calls.Load(), time.Now()
	time.Sleep(span)
	made, took := calls.Load()-before, time.Since(begin)
	cancel()
	wg.Wait()
	fmt.Printf("%.3f\n", float64(took.Nanoseconds())/1e3/float64(made))
	return nil
}

func main() {
	log.SetFlags(0)
	var err error
	switch {
	case len(os.Args) == 3 && os.Args[1] == "serve":
		err = serve(os.Args[2])
	case len(os.Args) == 5 && os.Args[1] == "call":
		var seconds float64
		if seconds, err = strconv.ParseFloat(os.Args[4], 64); err == nil {
			err = call(os.Args[2], os.Args[3], time.Duration(seconds*float64(time.Second)))
		}
	default:
		log.Fatal("usage: peer serve TARGET | call TARGET ROW SECONDS")
	}
	if err != nil {
		log.Fatal(err)
	}
}
