package server

import (
	"context"
	"os"
	"runtime/pprof"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call"
)

// run runs the handler and ends the call. It runs on a worker, on a task or, for unary calls, on
// the caller's goroutine. If run returns, the function that called run must remove the call from
// the connection's running calls.
func (c *serverCall) run() {
	if c.conn.server.scheduler.labels {
		defer c.label()()
	}
	returned := false
	defer func() {
		if !returned {
			// The handler panicked or called Goexit. The panic continues: it ends
			// the process, or reaches the caller if that runs the handler.
			c.finish(status.New(codes.Internal, "the handler exited without returning"))
			c.conn.server.scheduler.finished(c)
		}
	}()
	if h := c.conn.server.stats; h != nil {
		c.startStats(h)
	}
	if st := c.method.refusal; st != nil {
		c.finish(st)
	} else {
		c.beginStats()
		switch {
		case c.method.loop != nil && c.Err() != nil: // the call ended before the task ran
			c.finish(status.FromContextError(c.Err()))
		case !installed(c.open.Encoding):
			c.finish(status.Newf(codes.Unimplemented, "grpc: Decompressor is not installed for grpc-encoding %q", quotable(c.open.Encoding)))
		case c.method.unary != nil:
			c.runUnary()
		default:
			c.carried.stream.run()
		}
		if c.stats != nil {
			c.stats.End(c.stats.Outcome, nil)
		}
	}
	returned = true
	if c.carried != nil && c.carried.stream == nil {
		c.carried.leave() // a streaming handler may have kept its stream, so its transport stream is not freed
	}
}

// startStats reports an incoming call to the server's stats handler.
func (c *serverCall) startStats(h stats.Handler) {
	c.stats = call.NewStats(c.context(), h, false, &stats.RPCTagInfo{FullMethodName: c.open.Method})
	c.stats.Encoding = c.open.Encoding
	c.derive(c.stats.Ctx)
	p := c.conn.peer
	c.stats.Report(&stats.InHeader{
		FullMethod:  c.open.Method,
		RemoteAddr:  p.Addr,
		LocalAddr:   p.LocalAddr,
		Compression: c.open.Encoding,
		Header:      c.incomingMetadata().Copy(),
	})
}

// beginStats reports that the call has a handler.
func (c *serverCall) beginStats() {
	if s := c.stats; s != nil {
		s.Report(&stats.Begin{BeginTime: s.Begin, IsClientStream: c.method.clientStreams(), IsServerStream: c.method.serverStreams()})
	}
}

// runTimed calls run. It records how long the handler takes if that decides whether the method's
// next handler may run inline.
func (c *serverCall) runTimed() {
	if c.carried == nil || c.method.unary == nil || c.method.handlerTime.expected() < never {
		c.run()
		return
	}
	begun := time.Now()
	c.run()
	c.method.handlerTime.ran(time.Since(begun))
}

// runUnary runs the handler of a unary method.
func (c *serverCall) runUnary() {
	m := c.method
	reply, err := m.unary.Handler(m.impl, c.context(), c.readRequest, c.conn.server.unary)
	switch {
	case err != nil:
	case m.guard != nil:
		err = c.guardedReply(reply)
	default:
		err = c.reply(reply)
	}
	if err != nil {
		c.finish(statusOf(err))
	}
}

// guardedReply ends the call with v as reply does.
func (c *serverCall) guardedReply(v any) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = c.method.guard.Panicked(c.method.name, value)
		}
	}()
	return c.reply(v)
}

// run runs the handler.
func (s *serverStream) run() {
	c := &s.call
	m, server := c.method, c.conn.server
	var err error
	if server.stream == nil {
		err = m.stream.Handler(m.impl, s)
	} else {
		info := &grpc.StreamServerInfo{
			FullMethod:     c.open.Method,
			IsClientStream: m.stream.ClientStreams,
			IsServerStream: m.stream.ServerStreams,
		}
		err = server.stream(m.impl, s, info, m.stream.Handler)
	}
	c.finish(statusOf(err))
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
