package nearcall_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/loop"
)

// A visited counts its calls in a plain field: only tasks of one loop access it.
type visited struct {
	healthpb.UnimplementedHealthServer
	calls int
}

func (v *visited) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	v.calls++
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// The handlers of a service that is registered on a loop run one at a time, so they need
// no lock.
func ExampleServer_OnLoop() {
	l := loop.New()
	service := &visited{}
	srv := nearcall.NewServer()
	healthpb.RegisterHealthServer(srv.OnLoop(l), service)
	conn := srv.Client()
	client := healthpb.NewHealthClient(conn)

	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			if _, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{}); err != nil {
				log.Fatal(err)
			}
		})
	}
	all.Wait()
	if err := l.Post(func() { fmt.Println(service.calls, "calls") }); err != nil {
		log.Fatal(err)
	}

	conn.Close()
	srv.Stop()
	if err := l.Close(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output: 100 calls
}

// A desk passes orders on to a supplier. Its handlers run on a loop, so its fields need
// no lock.
type desk struct {
	orderspb.UnimplementedOrdersServer
	supplier      orderspb.OrdersClient
	pending, most int // orders at the supplier, now and at most
}

func (d *desk) Place(ctx context.Context, req *orderspb.PlaceRequest) (*orderspb.Order, error) {
	d.pending++
	d.most = max(d.most, d.pending)
	order, err := d.supplier.Place(ctx, req) // with the handler's context: others run while it waits
	d.pending--
	return order, err
}

// A wholesaler answers an order when two have arrived.
type wholesaler struct {
	orderspb.UnimplementedOrdersServer
	two sync.WaitGroup
}

func (w *wholesaler) Place(_ context.Context, req *orderspb.PlaceRequest) (*orderspb.Order, error) {
	w.two.Done()
	w.two.Wait()
	return &orderspb.Order{Item: req.GetItem()}, nil
}

// A handler on a loop calls another service with its own context. While it waits for the
// reply, other handlers run on the loop.
func ExampleServer_OnLoop_callsOut() {
	supplier := &wholesaler{}
	supplier.two.Add(2)
	wholesale := nearcall.NewServer()
	orderspb.RegisterOrdersServer(wholesale, supplier)
	toSupplier := wholesale.Client()

	l := loop.New()
	service := &desk{supplier: orderspb.NewOrdersClient(toSupplier)}
	retail := nearcall.NewServer()
	orderspb.RegisterOrdersServer(retail.OnLoop(l), service)
	conn := retail.Client()
	client := orderspb.NewOrdersClient(conn)

	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if _, err := client.Place(context.Background(), &orderspb.PlaceRequest{Item: "tea"}); err != nil {
				log.Fatal(err)
			}
		})
	}
	both.Wait()

	conn.Close()
	retail.Stop()
	if err := l.Close(context.Background()); err != nil { // waits for the tasks of l
		log.Fatal(err)
	}
	toSupplier.Close()
	wholesale.Stop()
	fmt.Println("orders pending at a time:", service.most)
	// Output: orders pending at a time: 2
}
