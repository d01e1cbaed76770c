// Package near selects what grpc-go's tests run on: grpc-go itself, or one of nearcall's
// paths. It maps the addresses that the tests listen on and dial to targets of that path.
package near

import (
	"fmt"
	"os"

	"github.com/nearcall/nearcall"
	"google.golang.org/grpc"
)

// KindVariable is the environment variable that tells a test process its Kind: that of package foreign.
const KindVariable = "NEARCALL_TESTS_ON"

// A Kind is an implementation of the servers and clients in a test.
type Kind string

// The kinds. There is none for a loop of coroutines: many handlers in grpc-go's tests wait
// on a channel, which blocks such a loop and delays the cancellation of its tasks
// (docs/loop.md).
const (
	GRPC     Kind = "grpc"     // grpc-go itself, the control
	Ordinary Kind = "ordinary" // clients of grpc-go, servers of nearcall

	// Clients of nearcall have the tests' own targets, resolvers and balancers.
	Targets     Kind = "targets"      // servers of nearcall
	TargetsGRPC Kind = "targets-grpc" // servers of grpc-go

	// Clients of nearcall have a target of nearcall's own, with one server.
	TCP       Kind = "tcp"
	WebSocket Kind = "ws"     // to the listeners of TCP; TCP with grpc-go's TLS credentials, which wss: does not take
	Unix      Kind = "unix"   // without the upgrade to shared memory
	SharedMem Kind = "shm"    // both sides meet at a unix socket
	InProcess Kind = "inproc" // workers run the handlers
	Inline    Kind = "inline" // in process, with HandlerPlacement(Inline)
	Shared    Kind = "shared" // in process, with ImmutableMessages
	Loop      Kind = "loop"   // in process, all handlers on a loop
)

// Kinds lists all kinds.
var Kinds = []Kind{GRPC, Ordinary, Targets, TargetsGRPC, TCP, WebSocket, Unix, SharedMem, InProcess, Inline, Shared, Loop}

// On is the kind of this process.
var On = func() Kind {
	if k := os.Getenv(KindVariable); k != "" {
		return Kind(k)
	}
	return GRPC
}()

// InOneProcess reports whether calls stay in the process.
func (k Kind) InOneProcess() bool {
	switch k {
	case InProcess, Inline, Shared, Loop:
		return true
	}
	return false
}

// ClientOfGRPC reports whether clients are grpc-go's.
func (k Kind) ClientOfGRPC() bool { return k == GRPC || k == Ordinary }

// ServerOfGRPC reports whether servers are grpc-go's.
func (k Kind) ServerOfGRPC() bool { return k == GRPC || k == TargetsGRPC }

// OwnTargets reports whether clients of nearcall have the tests' own targets.
func (k Kind) OwnTargets() bool { return k == Targets || k == TargetsGRPC }

// OnePath reports whether clients of nearcall have a target with one server.
func (k Kind) OnePath() bool { return !k.ClientOfGRPC() && !k.OwnTargets() }

// Balances reports whether clients can have several servers. In kind ordinary they can, but
// balancing is then grpc-go's alone.
func (k Kind) Balances() bool { return k == GRPC || k.OwnTargets() }

// Mapped reports whether the addresses that tests see are made up and stand for targets of
// the kind.
func (k Kind) Mapped() bool { return k.OnePath() && k != TCP && k != WebSocket }

// Unsupported exits the process because its test needs a feature that nearcall does not have. Package
// foreign knows what it prints.
func Unsupported(what string) {
	fmt.Fprintln(os.Stderr, "nearcall does not have: "+what)
	os.Exit(1)
}

// UserAgent returns the beginning of a client's user agent.
func UserAgent() string {
	if On.ClientOfGRPC() {
		return "grpc-go/" + grpc.Version
	}
	return "nearcall/" + nearcall.Version
}
