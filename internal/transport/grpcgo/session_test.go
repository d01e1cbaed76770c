package grpcgo

import (
	"context"
	"testing"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall/internal/link"
)

// A panicking connection's calls panic, as with an interceptor that does.
type panicking struct{ grpc.ClientConnInterface }

func (panicking) Invoke(context.Context, string, any, any, ...grpc.CallOption) error { panic("own") }

func TestACallThatPanicsDoesNotKeepASession(t *testing.T) {
	ended := false
	s := NewSession(panicking{}, "", "", link.Peer{Caps: link.Caps{OneShot: true}}, func() { ended = true })
	func() {
		defer func() {
			if value := recover(); value != "own" {
				t.Errorf("the caller recovers %v", value)
			}
		}()
		c := new(link.UnaryCall)
		c.Profile, c.Request = new(link.Profile), "request"
		_ = s.Invoke(t.Context(), c)
	}()
	s.Retire()
	if !ended || !link.IsClosed(s.Ended()) {
		t.Error("the session goes on")
	}
}
