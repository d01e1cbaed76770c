package call

import (
	"context"

	"github.com/nearcall/nearcall/internal/wait"
)

// Placement selects the goroutine for a unary handler that could run on its caller's. Package
// nearcall says more.
type Placement int

// The placements.
const (
	Auto Placement = iota
	Inline
	OnWorkers
)

// placementOf returns where a unary handler runs: Inline or OnWorkers. caller is the caller's
// context, nil if the call came from another process. mayInline says that the calling goroutine
// is the caller's.
func (s *Server) placementOf(m *method, caller context.Context, mayInline bool) Placement {
	switch {
	case caller != nil && wait.TaskOf(caller) != nil:
		return OnWorkers // the caller is a task: it is suspended, and other tasks run
	case caller != nil && m.loop != nil && m.loop.Inside():
		return Inline // waiting for another task of this loop would deadlock
	case !mayInline || s.cfg.Placement == OnWorkers:
		return OnWorkers
	case s.cfg.Placement == Inline:
		return Inline
	case caller == nil || caller.Done() != nil: // a handler must not delay a caller that may leave
		return OnWorkers
	case s.labels:
		// The caller's goroutine may have labels that are not in its context. They
		// would be lost when label restores the context's.
		return OnWorkers
	}
	return Inline
}
