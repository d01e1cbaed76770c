package engine_test

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

const allKinds = `
	async place({ customer, item, quantity }) {
		await new Promise(resolve => setTimeout(resolve, 1));
		return { id: '9007199254740993', customer, item, quantity: quantity + 1 };
	},
	await: ({ id }) => ({ id, shipped: true }),
	async list({ customer }, call) {
		for (let id = 1; id <= 3; id++) await call.send({ id: String(id), customer });
	},
	async import(call) {
		let placed = 0;
		for (let m; (m = await call.recv()) !== null;) placed += m.quantity;
		return { placed };
	},
	async haggle(call) {
		for (let m; (m = await call.recv()) !== null;) await call.send({ askCents: m.cents * 2 });
	},
`

func TestAServiceInJavaScriptAnswersAllKindsOfCalls(t *testing.T) {
	srv := serve(t, newEngine(t), allKinds)
	eachPath(t, srv, func(t *testing.T, client orderspb.OrdersClient) {
		ctx := withPatience(t)
		order, err := client.Place(ctx, &orderspb.PlaceRequest{Customer: "c", Item: "tea", Quantity: 2})
		if err != nil || order.GetId() != 9007199254740993 || order.GetCustomer() != "c" || order.GetQuantity() != 3 {
			t.Errorf("Place: %v, %v", order, err)
		}
		order, err = client.Await(ctx, &orderspb.AwaitRequest{Id: 5})
		if err != nil || order.GetId() != 5 || !order.GetShipped() {
			t.Errorf("Await, whose function is not async: %v, %v", order, err)
		}

		list, err := client.List(ctx, &orderspb.ListRequest{Customer: "c"})
		if err != nil {
			t.Fatal(err)
		}
		for id := int64(1); id <= 3; id++ {
			if order, err := list.Recv(); err != nil || order.GetId() != id {
				t.Errorf("List: %v, %v", order, err)
			}
		}
		if _, err := list.Recv(); err != io.EOF {
			t.Errorf("after List: %v", err)
		}

		all, err := client.Import(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			if err := all.Send(&orderspb.PlaceRequest{Quantity: 10}); err != nil {
				t.Fatal(err)
			}
		}
		if reply, err := all.CloseAndRecv(); err != nil || reply.GetPlaced() != 40 {
			t.Errorf("Import: %v, %v", reply, err)
		}

		talk, err := client.Haggle(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for cents := range int32(5) {
			if err := talk.Send(&orderspb.Offer{Cents: cents}); err != nil {
				t.Fatal(err)
			}
			if answer, err := talk.Recv(); err != nil || answer.GetAskCents() != 2*cents {
				t.Errorf("Haggle: %v, %v", answer, err)
			}
		}
		if err := talk.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := talk.Recv(); err != io.EOF {
			t.Errorf("after Haggle: %v", err)
		}
	})
}

// Handlers run without interruption between two awaits.
func TestThousandsOfCallsChangePlainStateWithoutALock(t *testing.T) {
	e := newEngine(t)
	srv := serve(t, e, `
		async place() {
			state.inside++;
			if (state.inside !== 1) throw new Error('somebody else is inside');
			state.calls++;
			state.inside--;
			await null;
			if (state.calls % 7 === 0) await new Promise(resolve => setTimeout(resolve, 0));
			return { id: String(++state.ends) };
		},
	`)
	run(t, e, "const state = { inside: 0, calls: 0, ends: 0 };")
	const callers, each = 50, 40
	paths := 0
	eachPath(t, srv, func(t *testing.T, client orderspb.OrdersClient) {
		paths++
		ctx := withPatience(t)
		var mu sync.Mutex
		seen := make(map[int64]bool)
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for range each {
					order, err := client.Place(ctx, &orderspb.PlaceRequest{})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if seen[order.GetId()] {
						t.Errorf("%d was given twice", order.GetId())
					}
					seen[order.GetId()] = true
					mu.Unlock()
				}
			})
		}
		all.Wait()
	})
	if paths*callers*each != 6000 {
		t.Fatalf("%d paths were taken", paths)
	}
	if got := run(t, e, "state"); got != `{"inside":0,"calls":6000,"ends":6000}` {
		t.Errorf("the state is %s", got)
	}
}

func TestWhatAHandlerThrowsIsAStatus(t *testing.T) {
	for name, test := range map[string]struct {
		handler string
		code    codes.Code
		message string
	}{
		"StatusError":           {`async place() { throw new StatusError(codes.NotFound, 'gone') }`, codes.NotFound, "gone"},
		"before an await":       {`place() { throw new StatusError(codes.NotFound, 'gone') }`, codes.NotFound, "gone"},
		"after an await":        {`async place() { await null; throw new StatusError(codes.NotFound, 'gone') }`, codes.NotFound, "gone"},
		"an Error with a code":  {`async place() { throw Object.assign(new Error('full'), { code: 8 }) }`, codes.ResourceExhausted, "full"},
		"an Error":              {`async place() { throw new Error('oops') }`, codes.Unknown, "Error: oops"},
		"a mistake":             {`async place() { return nothing.there }`, codes.Unknown, "ReferenceError: nothing is not defined"},
		"a string":              {`async place() { throw 'oops' }`, codes.Unknown, "oops"},
		"nothing":               {`async place() { throw undefined }`, codes.Unknown, "undefined"},
		"an OK that is thrown":  {`async place() { throw new StatusError(codes.OK, 'fine') }`, codes.Unknown, "StatusError: fine"},
		"a code of nobody's":    {`async place() { throw new StatusError(99, 'what') }`, codes.Unknown, "StatusError: what"},
		"details that are none": {`async place() { throw new StatusError(5, 'gone', [{ '@type': 'no.such/Type' }]) }`, codes.NotFound, "gone"},
		"what throws itself":    {`async place() { throw { get code() { throw 1 } } }`, codes.Unknown, "the script has thrown what cannot be looked at"},
		"endless recursion":     {`place() { const f = () => f() + 1; return f() }`, codes.ResourceExhausted, "the script's calls go too deep"},
		"no reply":              {`async place() {}`, codes.Internal, "the handler place: undefined is no nearcall.examples.orders.Order: an object is wanted"},
	} {
		t.Run(name, func(t *testing.T) {
			client := inProcess(t, serve(t, newEngine(t), test.handler))
			_, err := client.Place(withPatience(t), &orderspb.PlaceRequest{})
			if st := status.Convert(err); st.Code() != test.code || st.Message() != test.message {
				t.Errorf("%v: %q", st.Code(), st.Message())
			}
		})
	}
}

func TestAReplyWithAFieldThatDoesNotExistIsInternal(t *testing.T) {
	client := inProcess(t, serve(t, newEngine(t), `place: () => ({ prize: 1 })`))
	_, err := client.Place(withPatience(t), &orderspb.PlaceRequest{})
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "prize") {
		t.Error(err)
	}
}

func TestDetailsOfAnErrorArriveAsMessages(t *testing.T) {
	client := inProcess(t, serve(t, newEngine(t), `
		async place() {
			const shortage = { '@type': 'type.googleapis.com/nearcall.examples.orders.Shortage', item: 'tea', left: 3 };
			throw new StatusError(codes.ResourceExhausted, 'too few', [shortage]);
		},
	`))
	_, err := client.Place(withPatience(t), &orderspb.PlaceRequest{})
	details := status.Convert(err).Details()
	if len(details) != 1 {
		t.Fatalf("%v with details %v", err, details)
	}
	if s, ok := details[0].(*orderspb.Shortage); !ok || s.GetItem() != "tea" || s.GetLeft() != 3 {
		t.Errorf("the detail is %v", details[0])
	}
}

func TestAStreamThatFailsHasSentWhatItSent(t *testing.T) {
	srv := serve(t, newEngine(t), `
		list(request, call) {
			for (let id = 1; id <= 100; id++) call.send({ id: String(id) });
			throw new StatusError(codes.DataLoss, 'that was all');
		},
	`)
	eachPath(t, srv, func(t *testing.T, client orderspb.OrdersClient) {
		list, err := client.List(withPatience(t), &orderspb.ListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for id := int64(1); id <= 100; id++ {
			if order, err := list.Recv(); err != nil || order.GetId() != id {
				t.Fatalf("number %d is %v, %v", id, order, err)
			}
		}
		if _, err := list.Recv(); status.Code(err) != codes.DataLoss {
			t.Errorf("the end is %v", err)
		}
	})
}

func TestInterceptorsSeeCallsOfAScript(t *testing.T) {
	e := newEngine(t)
	run(t, e, "const service = {"+rest+"place: r => ({ item: r.item }) };")
	var seen []string
	srv := nearcall.NewServer(nearcall.UnaryInterceptor(
		func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			seen = append(seen, info.FullMethod)
			return handler(ctx, &orderspb.PlaceRequest{Item: req.(*orderspb.PlaceRequest).GetItem() + "!"})
		}))
	defer srv.Stop()
	if err := e.Register(srv, ordersService, "service"); err != nil {
		t.Fatal(err)
	}
	order, err := inProcess(t, srv).Place(withPatience(t), &orderspb.PlaceRequest{Item: "tea"})
	if err != nil || order.GetItem() != "tea!" || len(seen) != 1 || seen[0] != orderspb.Orders_Place_FullMethodName {
		t.Errorf("%v, %v, seen %v", order, err, seen)
	}
}

func TestAnObjectThatLacksHandlersIsNotRegistered(t *testing.T) {
	e := newEngine(t)
	run(t, e, "const half = { place() {}, await: 5, list() {} }, none = 3;")
	for object, want := range map[string]string{
		"half":    `"half" cannot serve nearcall.examples.orders.Orders: it lacks the functions await, import, haggle`,
		"none":    "it is no object but 3",
		"missing": "missing is not defined",
		"}":       "SyntaxError",
	} {
		srv := nearcall.NewServer()
		if err := e.Register(srv, ordersService, object); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", object, err)
		}
		if len(srv.GetServiceInfo()) > 0 {
			t.Errorf("%s was registered", object)
		}
		srv.Stop()
	}
}
