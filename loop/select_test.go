package loop_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/loop"
)

// TestWatchdogTellsOfAHandlerThatSelects checks that a watchdog reports a typical service
// that was not written for loops: Watch of grpc-go's health.Server selects on a channel and
// on the end of the call. On a loop that blocks Check.
func TestWatchdogTellsOfAHandlerThatSelects(t *testing.T) {
	const limit = 20 * time.Millisecond
	for name, newLoop := range map[string]func(loop.Option) (*loop.Loop, func()){
		"baton":      func(o loop.Option) (*loop.Loop, func()) { return loop.New(o), func() {} },
		"coroutines": func(o loop.Option) (*loop.Loop, func()) { return loop.New(loop.Coroutines(), o), func() {} },
		"pinned": func(o loop.Option) (*loop.Loop, func()) {
			l := loop.New(loop.Pinned(), o)
			ran := make(chan error, 1)
			go func() { ran <- l.Run(context.Background()) }()
			return l, func() {
				if err := <-ran; err != nil {
					t.Error(err)
				}
			}
		},
		"hosted": func(o loop.Option) (*loop.Loop, func()) {
			host := loop.New()
			return loop.NewHosted(host.Post, o), func() { _ = host.Close(context.Background()) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			stacks := make(chan string, 1)
			l, end := newLoop(loop.Watchdog(limit, func(_ time.Duration, stack []byte) {
				select {
				case stacks <- string(stack):
				default:
				}
			}))
			srv := nearcall.NewServer()
			healthpb.RegisterHealthServer(srv.OnLoop(l), health.NewServer())
			conn := srv.Client()
			client := healthpb.NewHealthClient(conn)

			ctx, cancel := context.WithCancel(t.Context())
			watched, checked := make(chan struct{}), make(chan error, 1)
			go func() { // with Coroutines, the caller runs the handler and is blocked, too
				defer close(watched)
				if s, err := client.Watch(ctx, &healthpb.HealthCheckRequest{}); err == nil {
					for ; err == nil; _, err = s.Recv() {
					}
				}
			}()
			stack := <-stacks
			if state, _, _ := strings.Cut(stack, "\n"); !strings.Contains(state, "[select") || !strings.Contains(stack, "health.(*Server).Watch(") {
				t.Errorf("the report does not show the handler that waits:\n%s", stack)
			}
			go func() {
				_, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{})
				checked <- err
			}()
			select {
			case err := <-checked:
				t.Errorf("the loop is not held: Check returns %v", err)
			default:
			}
			cancel()
			<-watched
			if err := <-checked; err != nil {
				t.Errorf("once it is over: %v", err)
			}
			_ = conn.Close()
			srv.Stop()
			if err := l.Close(context.Background()); err != nil {
				t.Error(err)
			}
			end()
		})
	}
}
