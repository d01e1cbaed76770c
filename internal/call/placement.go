package call

import (
	"context"

	"github.com/nearcall/nearcall/internal/wait"
)

// Placement says on which goroutine a unary handler runs where the caller's
// could be used.
type Placement int

const (
	// Auto runs a handler on its caller's goroutine if the caller's context
	// cannot be cancelled, and on a worker otherwise: a caller that may leave
	// at its deadline must not be kept waiting.
	Auto Placement = iota
	// Inline always runs it on the caller's goroutine.
	Inline
	// OnWorkers never does.
	OnWorkers
)

// placementOf returns where a unary handler runs, Inline or OnWorkers. caller is the
// caller's context, nil if the call came over a wire; mayInline says that the calling
// goroutine is the caller's.
func (s *Server) placementOf(m *method, caller context.Context, mayInline bool) Placement {
	switch {
	case caller != nil && wait.TaskOf(caller) != nil:
		return OnWorkers // the caller waits as a task, and lets others run
	case caller != nil && m.loop != nil && m.loop.Inside():
		return Inline // a task that calls its own loop would wait for itself
	case !mayInline || s.cfg.Placement == OnWorkers:
		return OnWorkers
	case s.cfg.Placement == Inline:
		return Inline
	case caller == nil || caller.Done() != nil:
		return OnWorkers
	case s.labels:
		// The caller's goroutine may have labels that its context does not know, and
		// those of the handler would replace them.
		return OnWorkers
	}
	return Inline
}
