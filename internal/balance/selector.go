package balance

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call/client"
	"github.com/nearcall/nearcall/internal/grpcinside"
)

// A selector is a config selector that can be replaced.
type selector struct {
	*grpcinside.Selector
	mu       sync.RWMutex // held for reading while a call uses it
	replaced bool
}

// replace waits until no call uses the selector, and makes later calls use its successor.
func (s *selector) replace() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replaced = true
}

// choose asks the channel's config selector which config applies to a call. Its errors are
// grpc-go's.
func (c *Channel) choose(ctx context.Context, s *selector, to client.Selection, method string) (client.Selection, error) {
	if !s.Known() {
		to.Through = c.whole
		return to, nil
	}
	s.mu.RLock()
	if s.replaced {
		s.mu.RUnlock()
		return c.Select(ctx, method)
	}
	defer s.mu.RUnlock()
	choice, err := s.Choose(ctx, method, c.authority)
	if err != nil {
		st, ok := status.FromError(err)
		switch {
		case !ok:
			err = status.Convert(err).Err()
		case client.IsControlPlaneOnly(st.Code()):
			err = status.Errorf(codes.Internal, "config selector returned illegal status: %v", err)
		}
		return to, err
	}
	if choice.Filters {
		if choice.Committed != nil {
			choice.Committed() // grpc-go chooses again
		}
		to.Through = c.whole
		return to, nil
	}
	if choice.Context != nil {
		to.Context = choice.Context
	}
	to.Method, to.Committed = choice.Method, choice.Committed
	return to, nil
}
