package client

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/testing/callservice"
)

// A tardy context has a deadline, and its timer never fires.
type tardy struct {
	context.Context
	deadline time.Time
}

func (c tardy) Deadline() (time.Time, bool) { return c.deadline, true }

// untilDeadline waits until the deadline of ctx has passed, whether or not ctx has ended.
func untilDeadline(ctx context.Context) {
	deadline, _ := ctx.Deadline()
	time.Sleep(time.Until(deadline))
}

// ends are what a handler may say at the end of its call.
var ends = map[string]error{
	"nothing":      nil,
	"not found":    status.Error(codes.NotFound, "no"),
	"cancelled":    status.Error(codes.Canceled, "no"),
	"unavailable":  status.Error(codes.Unavailable, "no"),
	"its deadline": context.DeadlineExceeded,
}

// isLate checks that a call ended with its deadline, and that the options were told only that.
func isLate(t *testing.T, r *callservice.Reports, what string, err error) {
	t.Helper()
	if status.Code(err) != codes.DeadlineExceeded || status.Convert(err).Message() != "context deadline exceeded" {
		t.Errorf("%s: %v, want the context's error", what, err)
	}
	if len(r.Ends) != 1 || r.Ends[0] == nil || r.Ends[0].Error() != err.Error() || len(r.Trailer) > 0 {
		t.Errorf("%s: the options are told of the end %v and the trailer %s", what, r.Ends, callservice.Show(r.Trailer))
	}
}

// Once its deadline has passed, a call has failed, even if the context's timer is late and what
// the handler has said comes first.
func TestTheDeadlineComesBeforeAnEndThatArrivesAfterIt(t *testing.T) {
	for name, cc := range map[string]func(*clientSetup){
		"one shot": nil,
		"streamed": func(c *clientSetup) {
			c.Sessions = callservice.Always{Session: callservice.Streamed{Session: c.Sessions.(callservice.Always).Session}}
		},
	} {
		for says, end := range ends {
			what := name + ", " + says
			synctest.Test(t, func(t *testing.T) {
				b := start(t, handlers{
					Unary: func(ctx context.Context, in *msg) (*msg, error) {
						_ = grpc.SetTrailer(ctx, metadata.Pairs("t", "1"))
						untilDeadline(ctx)
						return in, end
					},
					Stream: func(ss grpc.ServerStream) error {
						ss.SetTrailer(metadata.Pairs("t", "1"))
						untilDeadline(ss.Context())
						if err := ss.SendMsg(wrapperspb.Bytes([]byte("last"))); err != nil {
							t.Error(err)
						}
						return end
					},
				}, nil, cc)
				base, cancel := context.WithCancel(t.Context())
				defer cancel()
				within := func() context.Context { return tardy{base, time.Now().Add(time.Second)} }

				var unary callservice.Reports
				_, err := b.call(within(), unary.Options()...)
				isLate(t, &unary, what+", unary", err)

				var stream callservice.Reports
				s, err := b.NewStream(within(), streamDesc, streamMethod, stream.Options()...)
				if err != nil {
					t.Fatal(err)
				}
				m := new(msg)
				if err := s.RecvMsg(m); err != nil || string(m.Value) != "last" {
					t.Errorf("%s: received %s, %v; want the message before the end", what, m, err)
				}
				err = s.RecvMsg(m)
				isLate(t, &stream, what+", stream", err)
				if again := s.RecvMsg(m); again == nil || again.Error() != err.Error() {
					t.Errorf("%s: then %v", what, again)
				}
				if md := s.Trailer(); len(md) > 0 {
					t.Errorf("%s: the trailer is %s", what, callservice.Show(md))
				}
			})
		}
	}
}

func TestAnEndAfterTheDeadlineLeavesNoHeaderToWaitFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, handlers{Stream: func(ss grpc.ServerStream) error {
			untilDeadline(ss.Context())
			return nil
		}}, nil, nil)
		base, cancel := context.WithCancel(t.Context())
		defer cancel()
		var r callservice.Reports
		s, err := b.NewStream(tardy{base, time.Now().Add(time.Second)}, streamDesc, streamMethod, r.Options()...)
		if err != nil {
			t.Fatal(err)
		}
		if md, err := s.Header(); md != nil || err != nil {
			t.Errorf("the header is %s, %v", callservice.Show(md), err)
		}
		isLate(t, &r, "stream", s.RecvMsg(new(msg)))
	})
}
