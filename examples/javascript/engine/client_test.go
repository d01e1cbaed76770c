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

	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

func TestAScriptAwaitsCallsAndStreams(t *testing.T) {
	e := newEngine(t)
	bind(t, e, &goService{
		place: func(_ context.Context, req *orderspb.PlaceRequest) (*orderspb.Order, error) {
			return &orderspb.Order{Id: 1 << 60, Item: req.GetItem()}, nil
		},
		list: func(_ *orderspb.ListRequest, stream grpc.ServerStreamingServer[orderspb.Order]) error {
			for id := range int64(3) {
				if err := stream.Send(&orderspb.Order{Id: id}); err != nil {
					return err
				}
			}
			return nil
		},
		sum: func(stream grpc.ClientStreamingServer[orderspb.PlaceRequest, orderspb.ImportReply]) error {
			reply := &orderspb.ImportReply{}
			for {
				req, err := stream.Recv()
				if err == io.EOF {
					return stream.SendAndClose(reply)
				}
				if err != nil {
					return err
				}
				reply.Placed += req.GetQuantity()
			}
		},
		haggle: func(stream grpc.BidiStreamingServer[orderspb.Offer, orderspb.Answer]) error {
			for {
				offer, err := stream.Recv()
				if err == io.EOF {
					return nil
				}
				if err != nil {
					return err
				}
				if err := stream.Send(&orderspb.Answer{AskCents: offer.GetCents() + 1}); err != nil {
					return err
				}
			}
		},
	})
	got := run(t, e, `(async () => {
		const { id, item, shipped } = await orders.place({ item: 'tea' });

		const listed = [];
		const list = await orders.list({});
		for (let m; (m = await list.recv()) !== null;) listed.push(m.id);

		const all = await orders.import();
		for (let quantity = 1; quantity <= 4; quantity++) await all.send({ quantity });
		await all.closeSend();
		const { placed } = await all.recv();

		const answers = [];
		const talk = await orders.haggle();
		for (let cents = 0; cents < 30; cents += 10) {
			await talk.send({ cents });
			answers.push((await talk.recv()).askCents);
		}
		await talk.closeSend();
		answers.push(await talk.recv());

		return [id, item, shipped, listed, placed, answers];
	})()`)
	if want := `["1152921504606846976","tea",false,["0","1","2"],10,[1,11,21,null]]`; got != want {
		t.Errorf("the script returns %s, not %s", got, want)
	}
	if err := e.Close(withPatience(t)); err != nil {
		t.Errorf("something is left of the streams: %v", err)
	}
}

// Each of the calls waits for the other, and for a timer.
func TestWhileOneCallIsAwaitedAllElseGoesOn(t *testing.T) {
	e := newEngine(t)
	var both sync.WaitGroup
	both.Add(2)
	ticked := make(chan struct{})
	bind(t, e, &goService{place: func(ctx context.Context, req *orderspb.PlaceRequest) (*orderspb.Order, error) {
		if req.GetItem() == "ticked" {
			close(ticked)
			return &orderspb.Order{}, nil
		}
		both.Done()
		both.Wait()
		select {
		case <-ticked:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return &orderspb.Order{}, nil
	}})
	srv := serve(t, e, `place: async () => ({ id: String(ticks) })`)
	waiting := make(chan string, 1)
	go func() {
		text, err := e.Run(withPatience(t), "waiting", `
			let ticks = 0, ticked;
			const ticking = setInterval(() => { if (++ticks === 5) ticked = orders.place({ item: 'ticked' }) }, 1);
			Promise.all([orders.place({}), orders.place({})]).then(async all => { clearInterval(ticking); await ticked; return [all.length, ticks >= 5] });
		`)
		if err != nil {
			text = err.Error()
		}
		waiting <- text
	}()
	both.Wait()
	if _, err := inProcess(t, srv).Place(withPatience(t), &orderspb.PlaceRequest{}); err != nil {
		t.Errorf("a handler, while the script waits: %v", err)
	}
	if got := <-waiting; got != "[2,true]" {
		t.Errorf("the script returns %s", got)
	}
}

func TestAScriptMayCallItsOwnService(t *testing.T) {
	e := newEngine(t)
	srv := serve(t, e, `
		async place({ quantity }, call) {
			if (quantity === 0) return { quantity: 1 };
			return { quantity: 1 + (await self.place({ quantity: quantity - 1 }, { signal: call.signal })).quantity };
		},
	`)
	conn := srv.Client()
	defer conn.Close()
	if err := e.Bind("self", conn, ordersService); err != nil {
		t.Fatal(err)
	}
	order, err := inProcess(t, srv).Place(withPatience(t), &orderspb.PlaceRequest{Quantity: 50})
	if err != nil || order.GetQuantity() != 51 {
		t.Errorf("%v, %v", order, err)
	}
}

func TestAFailedCallRejectsItsPromise(t *testing.T) {
	e := newEngine(t)
	bind(t, e, &goService{
		place: func(context.Context, *orderspb.PlaceRequest) (*orderspb.Order, error) {
			st, err := status.New(codes.ResourceExhausted, "too few").WithDetails(&orderspb.Shortage{Item: "tea"})
			if err != nil {
				return nil, err
			}
			return nil, st.Err()
		},
		list: func(_ *orderspb.ListRequest, stream grpc.ServerStreamingServer[orderspb.Order]) error {
			if err := stream.Send(&orderspb.Order{}); err != nil {
				return err
			}
			return status.Error(codes.DataLoss, "torn")
		},
	})
	got := run(t, e, `(async () => {
		const seen = [];
		const see = e => seen.push([e instanceof StatusError, e instanceof Error, e.code, e.message, e.details.map(d => d.item)]);
		await orders.place({}).catch(see);
		const list = await orders.list({});
		await list.recv();
		await list.recv().catch(see);
		await orders.await({ id: 1 }).catch(see);
		return seen;
	})()`)
	want := `[[true,true,8,"too few",["tea"]],[true,true,15,"torn",[]],[true,true,12,"method Await not implemented",[]]]`
	if got != want {
		t.Errorf("the script has seen %s, not %s", got, want)
	}
}

func TestARequestThatIsNoneIsATypeError(t *testing.T) {
	e := newEngine(t)
	bind(t, e, &goService{})
	for call, want := range map[string]string{
		"orders.place({ itm: 'tea' })":                   `unknown field \"itm\"`,
		"orders.place()":                                 "undefined is no nearcall.examples.orders.PlaceRequest: an object is wanted",
		"orders.place(() => 1)":                          "a function is no",
		"orders.place({ quantity: 'x' })":                "quantity",
		"orders.place({ toJSON() { throw Error('t') }})": "t",
		"orders.place({}, 5)":                            "and 5 is none",
		"orders.place({}, { timeout: 0 })":               "and 0 is none",
		"orders.place({}, { timeout: 'soon' })":          "and soon is none",
		"orders.place({}, { signal: 1 })":                "and 1 is none",
	} {
		got := run(t, e, `(() => { try { `+call+`; return 'it was made' } catch (e) { return e.message } })()`)
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s", call, got)
		}
	}
}

func TestATimeoutAndASignalEndACall(t *testing.T) {
	e := newEngine(t)
	gone := make(chan struct{})
	bind(t, e, &goService{
		place: func(ctx context.Context, _ *orderspb.PlaceRequest) (*orderspb.Order, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		list: func(_ *orderspb.ListRequest, stream grpc.ServerStreamingServer[orderspb.Order]) error {
			if err := stream.Send(&orderspb.Order{}); err != nil {
				return err
			}
			<-stream.Context().Done()
			close(gone)
			return stream.Context().Err()
		},
	})
	got := run(t, e, `(async () => {
		const codes = [];
		const see = e => codes.push(e.code);
		await orders.place({}, { timeout: 1 }).catch(see);

		const early = new AbortController();
		early.abort();
		await orders.place({}, { signal: early.signal }).catch(see);
		await orders.list({}, { signal: early.signal }).catch(see);

		const late = new AbortController();
		const call = orders.place({}, { signal: late.signal }).catch(see);
		setTimeout(() => late.abort(), 1);
		await call;

		const list = await orders.list({});
		await list.recv();
		const next = list.recv().catch(see);
		list.cancel();
		await next;
		return codes;
	})()`)
	if got != "[4,1,1,1,1]" {
		t.Errorf("the codes are %s", got)
	}
	select {
	case <-gone:
	case <-withPatience(t).Done():
		t.Error("the service does not know that the script is gone")
	}
}
