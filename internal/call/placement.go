package call

import (
	"context"
	"os"
	"runtime/pprof"
	"strings"

	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wait"
)

// placementOf returns where a unary handler runs: Inline or OnWorkers. caller is the caller's
// context, nil if the call came from another process. mayInline says that the calling goroutine
// is the caller's.
func (s *Server) placementOf(m *method, caller context.Context, mayInline bool) options.Placement {
	switch {
	case caller != nil && wait.TaskOf(caller) != nil:
		return options.OnWorkers // the caller is a task: it is suspended, and other tasks run
	case caller != nil && m.loop != nil && m.loop.Inside():
		return options.Inline // waiting for another task of this loop would deadlock
	case !mayInline || s.opts.PlaceHandlers == options.OnWorkers:
		return options.OnWorkers
	case s.opts.PlaceHandlers == options.Inline:
		return options.Inline
	case caller == nil || caller.Done() != nil: // a handler must not delay a caller that may leave
		return options.OnWorkers
	case s.labels:
		// The caller's goroutine may have labels that are not in its context. They
		// would be lost when label restores the context's.
		return options.OnWorkers
	}
	return options.Inline
}

// methodLabel is the goroutine label with the full method name of a handler's call.
const methodLabel = "grpc.method"

// labelsMethods reports whether handlers' goroutines are labelled with their methods. It reads the
// environment variable as grpc-go does: "all", "none", or a comma-separated list of NAME=true and
// NAME=false. The last entry for methodLabel wins; other entries are ignored.
func labelsMethods() bool {
	v := os.Getenv("GRPC_GO_SERVER_GOROUTINE_LABELS")
	on := strings.EqualFold(v, "all")
	for pair := range strings.SplitSeq(v, ",") {
		name, value, _ := strings.Cut(pair, "=")
		if !strings.EqualFold(strings.TrimSpace(name), methodLabel) {
			continue
		}
		switch value = strings.TrimSpace(value); {
		case strings.EqualFold(value, "true"):
			on = true
		case strings.EqualFold(value, "false"):
			on = false
		}
	}
	return on
}

// label labels the calling goroutine and the handler's context with the method. restore
// removes the goroutine's labels.
//
// The runtime does not tell which labels a goroutine has. If the handler runs on its caller's
// goroutine, restore therefore sets those of the caller's context, as [pprof.Do] does.
func (c *serverCall) label() (restore func()) {
	before := context.Background()
	if c.onCaller && c.open.Caller != nil {
		before = c.open.Caller
	}
	ctx := pprof.WithLabels(c.context(), pprof.Labels(methodLabel, c.open.Method))
	c.derive(ctx)
	pprof.SetGoroutineLabels(ctx)
	return func() { pprof.SetGoroutineLabels(before) }
}
