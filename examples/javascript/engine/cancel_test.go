package engine_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

// The handlers wait until the signal is aborted.
const patient = `
	place(request, call) {
		call.signal.addEventListener('abort', () => {
			aborted.push([call.signal.aborted, call.signal.reason.code]);
		});
		begun++;
		return new Promise(() => {});
	},
	async haggle(call) {
		begun++;
		try {
			await call.recv();
		} catch (error) {
			await null;
			aborted.push([call.signal.aborted, error.code]);
			throw error;
		}
	},
`

func TestACallerThatLeavesEndsTheHandlersWait(t *testing.T) {
	e := newEngine(t)
	srv := serve(t, e, patient)
	run(t, e, "let begun = 0, aborted = [];")
	eachPath(t, srv, func(t *testing.T, client orderspb.OrdersClient) {
		for name, leave := range map[string]struct {
			code codes.Code
			call func(context.Context) error
		}{
			"unary, cancelled": {codes.Canceled, func(ctx context.Context) error {
				_, err := client.Place(ctx, &orderspb.PlaceRequest{})
				return err
			}},
			"stream, cancelled": {codes.Canceled, func(ctx context.Context) error {
				stream, err := client.Haggle(ctx)
				if err == nil {
					_, err = stream.Recv()
				}
				return err
			}},
			"unary, too late": {codes.DeadlineExceeded, func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
				defer cancel()
				_, err := client.Place(ctx, &orderspb.PlaceRequest{})
				return err
			}},
		} {
			t.Run(name, func(t *testing.T) {
				run(t, e, "begun = 0, aborted = []")
				ctx, cancel := context.WithCancel(withPatience(t))
				ended := make(chan error, 1)
				go func() { ended <- leave.call(ctx) }()
				if leave.code == codes.Canceled {
					for run(t, e, "begun") == "0" {
					}
					cancel()
				}
				if err := <-ended; status.Code(err) != leave.code {
					t.Errorf("the caller gets %v", err)
				}
				cancel()
				if leave.code == codes.DeadlineExceeded && run(t, e, "begun") == "0" {
					return // the deadline passed before the call began
				}
				var got string
				for got = "[]"; got == "[]"; got = run(t, e, "aborted") {
				}
				if leave.code == codes.Canceled && got != "[[true,1]]" || leave.code == codes.DeadlineExceeded && got != "[[true,4]]" && got != "[[true,1]]" {
					t.Errorf("the script sees %s", got)
				}
			})
		}
	})
}

func TestWhoLeavesWhileTheScriptIsBusyWaitsNoLonger(t *testing.T) {
	e := newEngine(t)
	client := inProcess(t, serve(t, e, `place() { for (;;) {} }`))
	ctx, cancel := context.WithTimeout(withPatience(t), 20*time.Millisecond)
	defer cancel()
	if _, err := client.Place(ctx, &orderspb.PlaceRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("the caller gets %v", err)
	}
}
