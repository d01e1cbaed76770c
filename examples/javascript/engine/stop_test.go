package engine_test

import (
	"context"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"

	"github.com/nearcall/nearcall/examples/javascript/engine"
)

// Stop ends handlers that wait for a promise, a message or a Go service, and ones that do not
// wait.
func TestAnEngineThatIsStoppedEndsCallsThatWait(t *testing.T) {
	const calls = 200
	for name, handlers := range map[string]string{
		"for a promise":    `place() { begun++; return new Promise(() => {}) }, haggle() { begun++; return new Promise(() => {}) }`,
		"for a timer":      `place() { begun++; return new Promise(r => setInterval(() => {}, 1)) }, haggle() { begun++; return new Promise(r => setTimeout(r, 1e6)) }`,
		"for a message":    `place() { begun++; return new Promise(() => {}) }, async haggle(call) { begun++; await call.recv() }`,
		"for a Go service": `async place(r) { begun++; return orders.place(r) }, async haggle(call) { begun++; const s = await orders.haggle(); await s.recv() }`,
	} {
		t.Run(name, func(t *testing.T) {
			e := engine.New(nil)
			defer e.Stop()
			bind(t, e, &goService{
				place: func(ctx context.Context, _ *orderspb.PlaceRequest) (*orderspb.Order, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				},
				haggle: func(s grpc.BidiStreamingServer[orderspb.Offer, orderspb.Answer]) error {
					<-s.Context().Done()
					return s.Context().Err()
				},
			})
			srv := serve(t, e, handlers)
			run(t, e, "let begun = 0;")
			lis, err := nearcall.Listen("tcp:127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- srv.Serve(lis) }()
			far, err := nearcall.NewClient(lis.Target(), nearcall.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = far.Close()
				_ = lis.Close()
				<-served
			}()
			clients := []orderspb.OrdersClient{inProcess(t, srv), orderspb.NewOrdersClient(far)}

			ended := make(chan error, calls)
			for i := range calls {
				go func() { ended <- callOf(clients[i%2], i/2%2 == 0) }()
			}
			for run(t, e, "begun") != "200" {
			}
			e.Stop()
			for range calls {
				select {
				case err := <-ended:
					if status.Code(err) != codes.Unavailable {
						t.Errorf("a caller gets %v", err)
					}
				case <-withPatience(t).Done():
					t.Fatal("a caller waits still")
				}
			}
			for _, client := range clients {
				if err := callOf(client, true); status.Code(err) != codes.Unavailable {
					t.Errorf("a call that comes later gets %v", err)
				}
			}
		})
	}
}

// callOf makes a call without a deadline.
func callOf(client orderspb.OrdersClient, unary bool) error {
	ctx := context.Background()
	if unary {
		_, err := client.Place(ctx, &orderspb.PlaceRequest{})
		return err
	}
	s, err := client.Haggle(ctx)
	if err == nil {
		_, err = s.Recv()
	}
	return err
}

func TestAnEndlessScriptIsStopped(t *testing.T) {
	e := engine.New(nil)
	client := inProcess(t, serve(t, e, `place() { begun = true; for (;;) {} }`))
	run(t, e, "let begun = false;")
	ctx := context.WithoutCancel(t.Context())
	ended := make(chan error, 10)
	for range cap(ended) {
		go func() {
			_, err := client.Place(ctx, &orderspb.PlaceRequest{})
			ended <- err
		}()
	}
	busy := make(chan error, 1)
	go func() {
		_, err := e.Run(ctx, "endless", "for (;;) {}")
		busy <- err
	}()
	e.Stop()
	for range cap(ended) {
		if err := <-ended; status.Code(err) != codes.Unavailable {
			t.Errorf("a caller gets %v", err)
		}
	}
	if err := <-busy; status.Code(err) != codes.Unavailable {
		t.Errorf("Run returns %v", err)
	}
	if _, err := e.Run(ctx, "late", "1"); status.Code(err) != codes.Unavailable {
		t.Errorf("a script that comes late: %v", err)
	}
	if err := e.Register(nearcall.NewServer(), ordersService, "service"); err == nil {
		t.Error("a stopped engine registers a service")
	}
}

// The host ends with more tasks in the loop's queue than one visit to the host runs. The loop
// drops the others, which have not begun.
func TestScriptsThatHaveNotBegunAreStopped(t *testing.T) {
	e := newEngine(t)
	ended := make(chan error)
	start := func(source string) {
		waits, once := make(chan struct{}), new(sync.Once)
		ctx := waitedFor{context.Background(), func() { once.Do(func() { close(waits) }) }}
		go func() {
			_, err := e.Run(ctx, "late", source)
			ended <- err
		}()
		<-waits
	}
	const scripts = 100
	for i := range scripts {
		if i == 0 {
			start("for (;;) {}")
		} else {
			start("1")
		}
	}
	e.Stop()
	for range scripts {
		if err := <-ended; status.Code(err) != codes.Unavailable {
			t.Errorf("Run returns %v", err)
		}
	}
}

// waitedFor is a context that reports when a goroutine begins to wait for its end.
type waitedFor struct {
	context.Context
	tell func()
}

func (c waitedFor) Done() <-chan struct{} {
	c.tell()
	return nil
}

func TestCloseWaitsForHandlers(t *testing.T) {
	e := newEngine(t)
	srv := serve(t, e, `
		place() { begun = true; return new Promise(resolve => setTimeout(() => resolve({ id: '7' }), 20)) },
	`)
	run(t, e, "let begun = false;")
	client := inProcess(t, srv)
	ended := make(chan error, 1)
	go func() {
		order, err := client.Place(withPatience(t), &orderspb.PlaceRequest{})
		if err == nil && order.GetId() != 7 {
			t.Errorf("the reply is %v", order)
		}
		ended <- err
	}()
	for run(t, e, "begun") != "true" {
	}
	if err := e.Close(withPatience(t)); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
