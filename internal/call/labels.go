package call

import (
	"context"
	"os"
	"runtime/pprof"
	"strings"
)

// methodLabel is the goroutine label that names the method of a handler.
const methodLabel = "grpc.method"

// labelsMethods reports whether handlers are labelled with their methods. It reads
// the environment as grpc-go does: "all", "none", or a list of NAME=true and
// NAME=false, of which the last counts, and nothing else.
func labelsMethods() bool {
	v := os.Getenv("GRPC_GO_SERVER_GOROUTINE_LABELS")
	if strings.EqualFold(v, "all") {
		return true
	}
	on := false
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

// label labels the calling goroutine, and the handler's context, with the method. What
// it returns takes the goroutine's labels away.
//
// Nobody can ask the runtime what labels a goroutine has. So a caller that runs its
// handler itself is given those of its context again, as [pprof.Do] does it.
func (c *serverCall) label() (restore func()) {
	before := context.Background()
	if c.onCaller && c.open.Caller != nil {
		before = c.open.Caller
	}
	ctx := pprof.WithLabels(c, pprof.Labels(methodLabel, c.open.Method))
	c.mu.Lock()
	c.details().labelled = ctx
	c.mu.Unlock()
	pprof.SetGoroutineLabels(ctx)
	return func() { pprof.SetGoroutineLabels(before) }
}

// labelled returns c, with the labels of the handler where it has any.
func (c *serverCall) labelled() context.Context {
	if c.conn.server.labels {
		return c.contextWithLabels()
	}
	return c
}

func (c *serverCall) contextWithLabels() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.more.labelled
}
