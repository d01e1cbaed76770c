package client

import (
	"context"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// A Balancer supplies a session for each attempt of a call, for targets with several endpoints.
type Balancer interface {
	// Select waits until the target was resolved for the first time, and returns the settings of
	// a call of method. Its errors are status errors.
	Select(ctx context.Context, method string) (Selection, error)

	// Pick is like Pick of [Sessions]. ctx is Select's, or derived from it.
	Pick(ctx context.Context, method string, waitForReady bool) (Pick, error)
}

// A Selection holds the settings of one call.
type Selection struct {
	Context context.Context // of the call
	Service *ServiceConfig  // the target's; may be nil
	//lint:ignore SA1019 it is what a config selector of xDS chooses
	Method    *grpc.MethodConfig       // replaces what Service has for the method; may be nil
	Committed func()                   // called when no more attempts are made, and perhaps again later; may be nil
	Delayed   bool                     // the call has waited for the target to be resolved
	Through   grpc.ClientConnInterface // if not nil, makes the whole call
}

// A Pick is the session for an attempt, with the metadata and the callback of the picker.
type Pick struct {
	Session   link.Session
	Authority string                  // replaces that of the target; "" for none
	Metadata  metadata.MD             // sent as well; may be nil
	Done      func(balancer.DoneInfo) // called once when the attempt has ended; may be nil
	Waited    bool                    // the first picker had no session
}

// selectConfig sets the context of a call, and returns the config that applies to it.
func (c *Client) selectConfig(ci *callInfo) (*methodConfig, error) {
	if c.cfg.Balancer == nil || ci.ctx == nil {
		return c.cfg.Service.of(ci.method), nil
	}
	if md, err := outgoing(ci.ctx); err != nil {
		return &noConfig, err
	} else if ci.md = md; wait.Err(ci.ctx) != nil {
		return &noConfig, nil // checkCall returns the error
	}
	s, err := c.cfg.Balancer.Select(ci.ctx, ci.method)
	if err != nil {
		return &noConfig, err
	}
	ci.ctx, ci.delayed, ci.through = s.Context, s.Delayed, s.Through
	if s.Committed != nil {
		ci.committed = s.Committed
	}
	mc := s.Service.of(ci.method)
	if s.Method != nil {
		mc = mc.replacedBy(s.Method)
	}
	return mc, nil
}

// replacedBy returns the config that m describes, with the throttler of mc.
//
//lint:ignore SA1019 it is what a config selector of xDS chooses
func (mc *methodConfig) replacedBy(m *grpc.MethodConfig) *methodConfig {
	own := &methodConfig{
		Timeout: (*jsonDuration)(m.Timeout), WaitForReady: m.WaitForReady, throttler: mc.throttler,
		MaxRequestMessageBytes: (*jsonSize)(m.MaxReqSize), MaxResponseMessageBytes: (*jsonSize)(m.MaxRespSize),
	}
	if p := m.RetryPolicy; p != nil {
		own.RetryPolicy = &retryPolicy{
			MaxAttempts: p.MaxAttempts, InitialBackoff: jsonDuration(p.InitialBackoff), MaxBackoff: jsonDuration(p.MaxBackoff),
			BackoffMultiplier: p.BackoffMultiplier, RetryableStatusCodes: slices.Collect(maps.Keys(p.RetryableStatusCodes)),
		}
	}
	return own
}

const loadKey = "endpoint-load-metrics-bin"

// loadType returns the type of load reports, or nil if the program does not contain it: then no
// policy of it uses load reports.
var loadType = sync.OnceValue(func() protoreflect.MessageType {
	t, _ := protoregistry.GlobalTypes.FindMessageByName("xds.data.orca.v3.OrcaLoadReport")
	return t
})

// loadOf returns the load report, an *orca_v3.OrcaLoadReport, in a trailer. It is a nil pointer if
// there is none, as in grpc-go.
func loadOf(trailer metadata.MD) any {
	t := loadType()
	if t == nil {
		return nil
	}
	v := trailer[loadKey]
	if len(v) != 1 {
		return t.Zero().Interface()
	}
	m := t.New().Interface()
	if proto.Unmarshal([]byte(v[0]), m) != nil {
		return t.Zero().Interface()
	}
	return m
}
