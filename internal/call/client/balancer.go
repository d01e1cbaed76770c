package client

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/nearcall/nearcall/internal/link"
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
