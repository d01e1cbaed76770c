package server

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wait"
)

// A method says how to handle calls with one full method name.
type method struct {
	name         string // /service/method
	impl         any
	guard        Guard            // impl, if it is one
	loop         wait.Loop        // runs the handlers; nil for goroutines
	runsOnCaller bool             // goroutines of callers in this process may run loop's tasks
	unary        *grpc.MethodDesc // nil for streaming methods
	stream       *grpc.StreamDesc
	codec        message.Codec  // of forwarded streams; nil for the call's
	refusal      *status.Status // status of all calls, if there is no such method
	invalid      bool           // the name is not valid in a header: calls are refused
	handlerTime  handlerTime    // of unary methods
}

// clientStreams reports whether the caller may send more than one message.
func (m *method) clientStreams() bool { return m.stream != nil && m.stream.ClientStreams }

func (m *method) serverStreams() bool { return m.stream != nil && m.stream.ServerStreams }

// A Guard is a service's implementation. Its panics must not end the process. It recovers
// panics of its handlers itself. A panic of the codec that encodes a unary reply is passed
// to Panicked, which returns the error of the call.
type Guard interface {
	Panicked(method string, value any) error
}

// A handlerTime tracks how long a method's handler takes. The goroutine that reads a connection
// runs the handlers of quick methods: nothing else is read meanwhile, but no goroutine has to be
// woken. Each method must first prove on workers that it is quick. A rather slow run now and then
// does no harm, and busy processors make all handlers slow at times. But after a long run the
// method must prove itself again, on many calls.
type handlerTime struct {
	score atomic.Int32 // the method counts as quick from provenScore on
	mean  atomic.Int32 // the mean time of quick runs, in ns; recent runs count most
}

const (
	quickRun = 250 * time.Microsecond // the longest run that is quick

	provenScore = 16                // how many quick runs a new method needs
	maxScore    = provenScore + 64  // the limit of score
	slowRun     = 24                // a run that is not quick subtracts this
	longRun     = provenScore - 256 // the score after a run of inlineCheckTime or more

	never = time.Hour // the result of expected for methods that are not quick
)

// expected returns how long the next run is likely to take. It returns the constant never for a
// method that has not proved to be quick.
func (t *handlerTime) expected() time.Duration {
	if t.score.Load() < provenScore {
		return never
	}
	return time.Duration(t.mean.Load())
}

// ran records that a run took d. Concurrent records may be lost.
func (t *handlerTime) ran(d time.Duration) {
	score := t.score.Load()
	switch {
	case d >= inlineCheckTime:
		t.score.Store(longRun)
		return
	case d > quickRun:
		t.score.Store(max(score-slowRun, longRun))
		return
	case score < maxScore:
		t.score.Store(score + 1)
	}
	mean := t.mean.Load()
	t.mean.Store(mean + (int32(d)-mean)/8)
}

// A forward forwards the calls to services that a server does not have, as bytes.
type forward struct {
	*options.Forward
	codec message.Codec

	once    sync.Once
	streams map[string]*grpc.StreamDesc // by full method name
	has     map[string]bool             // by service name
}

func newForward(o *options.Server) *forward {
	if o.ForwardTo == nil {
		return nil
	}
	return &forward{Forward: o.ForwardTo, codec: codec.WrapV2(o.ForwardTo.Codec)}
}

// learn calls Services once and keeps the result.
func (f *forward) learn() {
	f.once.Do(func() {
		f.streams, f.has = make(map[string]*grpc.StreamDesc), make(map[string]bool)
		for service, info := range f.Services() {
			f.has[service] = true
			for _, m := range info.Methods {
				f.streams["/"+service+"/"+m.Name] = f.stream(m.IsClientStream)
			}
		}
	})
}

func (f *forward) stream(clientStreams bool) *grpc.StreamDesc {
	return &grpc.StreamDesc{
		StreamName: "forwarded", ClientStreams: true, ServerStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error { return f.Handler(s, clientStreams) },
	}
}

// method returns the method for a full name, even for one that is not in Services.
func (f *forward) method(full string) *method {
	m := &method{name: full, codec: f.codec}
	if m.stream = f.streams[full]; m.stream == nil {
		m.stream = f.stream(true)
	}
	return m
}

// addTo adds the forward's services to the map all, except those that the map has already.
func (f *forward) addTo(all map[string]grpc.ServiceInfo) {
	if f == nil {
		return
	}
	for name, info := range f.Services() {
		if _, ok := all[name]; !ok {
			all[name] = info
		}
	}
}

// serviceOf splits a full method name. ok is false if it is malformed.
func serviceOf(full string) (service, method string, ok bool) {
	name, ok := strings.CutPrefix(full, "/")
	slash := strings.LastIndexByte(name, '/')
	if !ok || slash < 0 {
		return "", "", false
	}
	return name[:slash], name[slash+1:], true
}

// inlineCheckTime is the time between two checks of the inline handlers. The second check that
// finds a handler still running releases its goroutine.
const inlineCheckTime = 2 * time.Millisecond
