package nearconnect_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect/v2"

	nearconnect "github.com/nearcall/nearcall/connect"
	"github.com/nearcall/nearcall/connect/internal/echopb"
	"github.com/nearcall/nearcall/connect/internal/echopb/echopbconnect"
)

// waiting is a service whose handlers wait for the end of their context, and report its error.
func waiting(began chan<- struct{}, ended chan<- error) echo {
	wait := func(ctx context.Context) error {
		began <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}
	return echo{
		unary: func(ctx context.Context, _ *echopb.Message) (*echopb.Message, error) { return nil, wait(ctx) },
		sum: func(ctx context.Context, _ echopbconnect.EchoSumServerStream) (*echopb.Message, error) {
			return nil, wait(ctx)
		},
		count: func(ctx context.Context, _ *echopb.Message, _ echopbconnect.EchoCountServerStream) error {
			return wait(ctx)
		},
		chat: func(ctx context.Context, _ echopbconnect.EchoChatServerStream) error { return wait(ctx) },
	}
}

// eachKind makes a call of each kind, which receives until it gets an error.
var eachKind = map[string]func(context.Context, echopbconnect.EchoClient) error{
	"unary": func(ctx context.Context, c echopbconnect.EchoClient) error {
		_, err := c.Unary(ctx, &echopb.Message{})
		return err
	},
	"sum": func(ctx context.Context, c echopbconnect.EchoClient) error {
		s, err := c.Sum(ctx)
		if err == nil {
			_, err = s.CloseAndReceive()
		}
		return err
	},
	"count": func(ctx context.Context, c echopbconnect.EchoClient) error {
		s, err := c.Count(ctx, &echopb.Message{})
		if err == nil {
			_, err = s.Receive()
		}
		return err
	},
	"chat": func(ctx context.Context, c echopbconnect.EchoClient) error {
		s, err := c.Chat(ctx)
		if err == nil {
			_, err = s.Receive()
		}
		return err
	},
}

func TestACancelledCallerReturns(t *testing.T) {
	onEachPath(t, func(t *testing.T, path string) {
		began, ended := make(chan struct{}, 1), make(chan error, 1)
		c := clientOf(connectTo(t, path, serverOf(waiting(began, ended))))
		for kind, call := range eachKind {
			t.Run(kind, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					<-began
					cancel()
				}()
				err := call(ctx, c)
				if e := wantCode(t, err, connect.CodeCanceled); !errors.Is(err, context.Canceled) || e.IsRemote() {
					t.Errorf("the error is %#v", e)
				}
				if err := <-ended; err != context.Canceled {
					t.Errorf("the handler's context ends with %v", err)
				}
				err = call(ctx, c)
				if wantCode(t, err, connect.CodeCanceled); !errors.Is(err, context.Canceled) {
					t.Errorf("the next call returns %v", err)
				}
			})
		}
	})
}

// TestACancelledCallerInProcessDoesNotWaitForTheHandler, which Connect's transport in process does.
func TestACancelledCallerInProcessDoesNotWaitForTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		srv := serverOf(echo{unary: func(context.Context, *echopb.Message) (*echopb.Message, error) { <-release; return nil, nil }})
		conn := srv.Client()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := clientOf(conn).Unary(ctx, &echopb.Message{})
		if wantCode(t, err, connect.CodeDeadlineExceeded); time.Since(began) != time.Second {
			t.Errorf("the call took %v", time.Since(began))
		}
		close(release)
		_ = conn.Close()
		srv.Stop()
	})
}

func TestDeadlines(t *testing.T) {
	onEachPath(t, func(t *testing.T, path string) {
		for kind, call := range eachKind {
			t.Run(kind, func(t *testing.T) {
				const attempts = 8
				began, ended := make(chan struct{}, attempts), make(chan error, attempts)
				c := clientOf(connectTo(t, path, serverOf(waiting(began, ended))))
				for n, patience := 0, 50*time.Millisecond; n < attempts; n, patience = n+1, 2*patience {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					err := call(ctx, c)
					cancel()
					if wantCode(t, err, connect.CodeDeadlineExceeded); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("the error's cause is %v", errors.Unwrap(err))
					}
					select {
					case err := <-ended:
						if err != context.DeadlineExceeded {
							t.Errorf("the handler's context ends with %v", err)
						}
						return
					case <-time.After(patience): // the deadline may have passed before the handler began
					}
				}
				t.Error("no handler has ended")
			})
		}
	})
}

func TestCloseEndsAStream(t *testing.T) {
	onEachPath(t, func(t *testing.T, path string) {
		began, ended := make(chan struct{}, 1), make(chan error, 1)
		client := connect.NewClient(nearconnect.NewTransport(connectTo(t, path, serverOf(waiting(began, ended)))))
		for name, spec := range map[string]connect.Spec{
			"unary": {Procedure: echopbconnect.EchoUnaryProcedure},
			"sum":   {Procedure: echopbconnect.EchoSumProcedure, StreamType: connect.StreamTypeClient},
			"count": {Procedure: echopbconnect.EchoCountProcedure, StreamType: connect.StreamTypeServer},
			"chat":  {Procedure: echopbconnect.EchoChatProcedure, StreamType: connect.StreamTypeBidi},
		} {
			t.Run(name, func(t *testing.T) {
				s, err := client.CallClientStream(t.Context(), spec)
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Send(&echopb.Message{}); err != nil {
					t.Fatal(err)
				}
				closed := make(chan struct{})
				go func() {
					defer close(closed)
					<-began
					for range 2 {
						if err := s.Close(); err != nil {
							t.Errorf("Close returns %v", err)
						}
					}
				}()
				err = s.Receive(&echopb.Message{})
				if wantCode(t, err, connect.CodeCanceled); !errors.Is(err, context.Canceled) {
					t.Errorf("the error's cause is %v", errors.Unwrap(err))
				}
				if err := <-ended; err != context.Canceled {
					t.Errorf("the handler's context ends with %v", err)
				}
				<-closed
			})
		}
	})
}

func TestCloseEndsTheWaitForARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := serverOf(echo{})
		conn := srv.Client()
		client := connect.NewClient(nearconnect.NewTransport(conn))
		spec := connect.Spec{Procedure: echopbconnect.EchoUnaryProcedure}
		for name, end := range map[string]func(connect.ClientStream, context.CancelFunc){
			"Close":  func(s connect.ClientStream, _ context.CancelFunc) { _ = s.Close() },
			"cancel": func(_ connect.ClientStream, cancel context.CancelFunc) { cancel() },
		} {
			ctx, cancel := context.WithCancel(t.Context())
			s, _ := client.CallClientStream(ctx, spec)
			got := make(chan error)
			go func() { got <- s.Receive(&echopb.Message{}) }()
			synctest.Wait()
			end(s, cancel)
			if err := <-got; connect.CodeOf(err) != connect.CodeCanceled || !errors.Is(err, context.Canceled) {
				t.Errorf("after %s Receive returns %v", name, err)
			}
			cancel()
		}

		// The request can come after Receive.
		s, _ := client.CallClientStream(t.Context(), spec)
		got := make(chan error)
		var reply echopb.Message
		go func() { got <- s.Receive(&reply) }()
		synctest.Wait()
		_ = s.Send(&echopb.Message{Number: 7})
		if err := <-got; err != nil || reply.GetNumber() != 7 {
			t.Errorf("Receive returns %v and %v", &reply, err)
		}
		_ = conn.Close()
		srv.Stop()
	})
}

func TestTheEndsOfAStream(t *testing.T) {
	onEachPath(t, func(t *testing.T, path string) {
		conn := connectTo(t, path, serverOf(echo{}))
		client := connect.NewClient(nearconnect.NewTransport(conn))
		s, err := clientOf(conn).Chat(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.CloseSend(); err != nil {
				t.Errorf("CloseSend returns %v", err)
			}
		}
		if err := s.Send(&echopb.Message{}); err != io.EOF {
			t.Errorf("after CloseSend, Send returns %v", err)
		}
		for range 2 {
			if _, err := s.Receive(); err != io.EOF {
				t.Errorf("at the end Receive returns %v", err)
			}
		}
		sum, _ := client.CallClientStream(t.Context(), connect.Spec{Procedure: echopbconnect.EchoSumProcedure, StreamType: connect.StreamTypeClient})
		_ = sum.CloseSend()
		if err := sum.Receive(&echopb.Message{}); err != nil {
			t.Error(err)
		}
		if err := sum.Receive(&echopb.Message{}); err != io.EOF {
			t.Errorf("after the one reply Receive returns %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancelled, _ := clientOf(conn).Chat(ctx)
		if err := cancelled.SendHeaders(); err != nil {
			t.Error(err)
		}
		cancel()
		wantCode(t, cancelled.Send(&echopb.Message{}), connect.CodeCanceled)
		u, _ := client.CallClientStream(t.Context(), connect.Spec{Procedure: echopbconnect.EchoUnaryProcedure})
		if err := u.Send(&echopb.Message{Number: 1}); err != nil {
			t.Error(err)
		}
		wantCode(t, u.Send(&echopb.Message{Number: 2}), connect.CodeInternal)
		_ = u.CloseSend()
		if err := u.Send(&echopb.Message{Number: 3}); err != io.EOF {
			t.Errorf("after CloseSend, Send returns %v", err)
		}
		var reply echopb.Message
		if err := u.Receive(&reply); err != nil || reply.GetNumber() != 1 {
			t.Errorf("Receive returns %v and %v", &reply, err)
		}
		if err := u.Receive(&reply); err != io.EOF {
			t.Errorf("a second Receive returns %v", err)
		}
		empty, _ := client.CallClientStream(t.Context(), connect.Spec{Procedure: echopbconnect.EchoUnaryProcedure})
		_ = empty.CloseSend()
		wantCode(t, empty.Receive(&reply), connect.CodeUnimplemented)
	})
}

// TestAHandlerThatDoesNotAnswer: as in Connect, it is the service that is incomplete.
func TestAHandlerThatDoesNotAnswer(t *testing.T) {
	onEachPath(t, func(t *testing.T, path string) {
		server := connect.NewServer()
		silent := func(context.Context, connect.Spec, connect.ServerStream) error { return nil }
		unary := connect.Spec{Procedure: "/silent.Service/Unary"}
		sum := connect.Spec{Procedure: "/silent.Service/Sum", StreamType: connect.StreamTypeClient}
		typed := connect.Spec{Procedure: "/silent.Typed/Unary", Schema: echopb.File_internal_echopb_echo_proto.Services().Get(0).Methods().ByName("Unary")}
		server.Register(connect.Method{Spec: unary, Handler: silent}, connect.Method{Spec: sum, Handler: silent}, connect.Method{Spec: typed, Handler: silent})
		srv := newServer(server)
		client := connect.NewClient(nearconnect.NewTransport(connectTo(t, path, srv)))
		for _, spec := range []connect.Spec{unary, sum, typed} {
			s, err := client.CallClientStream(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			_ = s.Send(&echopb.Message{})
			_ = s.CloseSend()
			wantCode(t, s.Receive(&echopb.Message{}), connect.CodeUnimplemented)
		}
	})
}

// TestSenderAndReceiverOpenAStreamTogether: both may come first.
func TestSenderAndReceiverOpenAStreamTogether(t *testing.T) {
	onEachPath(t, func(t *testing.T, path string) {
		c := clientOf(connectTo(t, path, serverOf(echo{})))
		for range 50 {
			s, _ := c.Chat(t.Context())
			sent := make(chan error, 1)
			go func() { sent <- s.Send(&echopb.Message{Number: 1}) }()
			if m, err := s.Receive(); err != nil || m.GetNumber() != 1 {
				t.Fatalf("Receive returns %v and %v", m, err)
			}
			if err := <-sent; err != nil {
				t.Error(err)
			}
			_ = s.Close()
		}
	})
}
