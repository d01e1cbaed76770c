// Package near says what a run of grpc-go's tests is on: grpc-go itself, or one of the paths of nearcall. It maps the
// addresses that the tests listen on and dial to targets of that path.
package near

import (
	"fmt"
	"os"

	"github.com/nearcall/nearcall"
	"google.golang.org/grpc"
)

// Environment variables by which a test process is told what to do.
const (
	KindVariable      = "NEARCALL_TESTS_ON"  // a Kind, grpc if empty
	DirectoryVariable = "NEARCALL_TESTS_DIR" // for sockets
)

// A Kind is what the servers and clients of a test are.
type Kind string

// The kinds. A loop of coroutines is not among them: many handlers of grpc-go's tests wait on a channel, and hold such a
// loop and the cancellations of its tasks with it (docs/loop.md).
const (
	GRPC      Kind = "grpc" // grpc-go itself, the control
	TCP       Kind = "tcp"
	Unix      Kind = "unix"   // without the upgrade to shared memory
	SharedMem Kind = "shm"    // a unix socket is how both sides meet
	InProcess Kind = "inproc" // workers run the handlers
	Inline    Kind = "inline" // in process, with InlineHandlers
	Shared    Kind = "shared" // in process, with SharedMessages
	Loop      Kind = "loop"   // in process, all handlers on a loop
)

// Kinds are all of them.
var Kinds = []Kind{GRPC, TCP, Unix, SharedMem, InProcess, Inline, Shared, Loop}

// On is the kind that this process runs its tests on.
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

// Mapped reports whether the addresses that tests see are made up, and stand for something else.
func (k Kind) Mapped() bool { return k != GRPC && k != TCP }

// ExitUnsupported is how a test process exits that needs what nearcall does not have.
const ExitUnsupported = 77

// UnsupportedPrefix begins the line that says what that is.
const UnsupportedPrefix = "nearcall does not have: "

// Unsupported ends the process: its test needs what nearcall does not have.
func Unsupported(what string) {
	fmt.Fprintln(os.Stderr, UnsupportedPrefix+what)
	os.Exit(ExitUnsupported)
}

// UserAgent is what a client says it is.
func UserAgent() string {
	if On == GRPC {
		return "grpc-go/" + grpc.Version
	}
	return "nearcall/" + nearcall.Version
}
