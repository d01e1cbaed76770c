// Package link is the seam between gRPC's rules and the ways a call can
// travel. Above it internal/call knows status codes, interceptors and
// cardinality; below it transports know memory, sockets and credit. It holds
// the words both sides share: no goroutine, no I/O.
//
// A transport carries streams of frames whose messages have two forms: live (a
// Go value and its codec) or encoded (bytes). A transport inside one process
// hands live messages over and never marshals; any other asks a message for
// its bytes. No transport knows what a status means.
package link

import (
	"context"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/wait"
)

// A Session carries calls from one peer to another. All methods may be called
// by any number of goroutines.
type Session interface {
	// Invoke makes a whole unary call and fills in c's result. It returns nil
	// when the peer has ended the call, whatever its status; the reason when
	// the caller left or the session failed; and ErrNoCall, having done
	// nothing, if this call must be made with NewStream.
	Invoke(ctx context.Context, c *UnaryCall) error

	// NewStream starts a stream. ctx bounds the start only: the caller aborts
	// the stream when its own context ends.
	NewStream(ctx context.Context, o *CallHeader) (Stream, error)

	// Drain closes Done, so that no new calls are made, and lets running ones
	// end. The peer learns of it before it learns of a call that was refused
	// after it: whoever makes that call again must not find the session open.
	Drain()

	// Close ends the session and all its calls for reason. It does not wait:
	// what calls that have ended left to be said is said after it, and the
	// Acceptor is told when that is done.
	Close(reason error) error

	// Done is closed when the session can take no more calls.
	Done() <-chan struct{}

	// Ended is closed when the session is over, its calls aborted.
	Ended() <-chan struct{}

	// Peer describes the other side.
	Peer() *Peer
}

// An Acceptor is told of the calls that the peer of a session makes.
type Acceptor interface {
	// HandleUnary is called for each unary call. It runs the handler before it
	// returns only if inline says that the calling goroutine may be used for it.
	// It returns ErrNoCall, having done nothing, if the caller must use NewStream.
	HandleUnary(c *UnaryCall, inline bool) error

	// HandleStream is called for each stream, and returns at once. An error
	// refuses the stream: the acceptor does not touch it any more.
	HandleStream(s Stream, o *CallHeader) error

	// Closed is told once that the session has ended. Calls that still run
	// are aborted for reason.
	Closed(reason error)

	// Gone is told once, after Closed, when this process is not needed any
	// more for what was said: the peer has everything, or can have it from
	// the system, or will not take it. A session whose peer stops taking
	// gives up after some seconds, so Gone always comes.
	Gone()

	// Terms returns what is asked of the session.
	Terms() Terms
}

// Terms are what an Acceptor asks of a session in its own process, where no
// bytes can negotiate them.
type Terms struct {
	// Window is how many bytes of a stream the caller may have sent that the
	// callee has not received; 0 for the session's own choice.
	Window int

	// Share says that the callee writes to no message it has sent or received.
	Share bool

	// Admit, unless nil, is called before each Call and Accept and waits until
	// the call may run. Its error is the context's.
	Admit func(context.Context) error
}

// A Dialer makes sessions.
type Dialer interface {
	// Dial opens a session. The error says what the target lacks.
	Dial(ctx context.Context) (Session, error)
}

// A Listener is a net.Listener whose peers arrive as sessions rather than as
// byte streams. Its Accept returns an error that says so.
type Listener interface {
	net.Listener

	// Sessions calls accept for each session that a peer opens, with the
	// session as the server sees it, and takes its calls to the Acceptor that
	// accept returns. A nil Acceptor refuses the session. It returns when the
	// listener is closed.
	Sessions(accept func(Session) Acceptor) error
}

// A Stream carries one call's frames, in order, both ways. One goroutine may
// send messages while another calls Recv. Frames without a message, and the
// other methods, may come from any goroutine at any time.
type Stream interface {
	// Send passes f on. It blocks for credit. The message is captured, and f
	// may be used again, when it returns. After the peer ended the call it
	// returns ErrEnded, as it does after one's own End, which also unblocks a
	// Send that waits; after Abort the reason. A *SendError means that the
	// message could not be encoded and nothing was sent.
	Send(f *Frame) error

	// Recv waits for the next frame. With f.Dst set it may bring a message;
	// without it returns as soon as a header or an end is there, and messages
	// stay. Frames that arrived before Abort are delivered first. A
	// *RecvError means that the message arrived but did not fit f.Dst.
	Recv(f *Frame) error

	// Abort ends the stream for reason, which the peer learns; the first
	// reason wins. It unblocks Send and Recv. A callee that has sent its End
	// has ended the stream: its Abort does nothing.
	Abort(reason error)

	// OnAbort has f called, once, with the reason when the stream is aborted
	// by either side, at once when it already was. A callee is told before its
	// Send and Recv return, a caller after what had arrived can be received
	// without waiting. At most one f, set before
	// the stream is shared between goroutines.
	OnAbort(f func(reason error))

	// SetWaiter says who waits in Send and Recv; nil for goroutines.
	SetWaiter(w wait.Waiter)
}

// MessageOverhead is what a message counts beside its own bytes, for credit
// and in stats: the length of gRPC's message header.
const MessageOverhead = 5

// Errors of sessions and streams.
var (
	// ErrUnprocessed is wrapped by errors of Call and Open when the peer's
	// handler never saw the call: it is safe to try again.
	ErrUnprocessed = errors.New("the call was not processed")

	// ErrExhausted is wrapped by the errors of sessions and streams that say a
	// limit was reached.
	ErrExhausted = errors.New("a limit was reached")

	// ErrBroken is wrapped by the reason of a stream that one side broke the
	// rules of.
	ErrBroken = errors.New("the rules of the call were broken")

	// ErrForeign is wrapped by the errors of a Dialer that has met a server of
	// another protocol. Trying again is useless until somebody replaces it.
	ErrForeign = errors.New("the peer speaks another protocol")

	// ErrNoCall is returned by Session.Call where the call must be made as a
	// stream: over transports without a short cut, and to streaming methods.
	ErrNoCall = errors.New("link: make this call with Open")

	// ErrReplies is returned by Session.Call when the callee has sent more than
	// one message.
	ErrReplies = errors.New("link: more than one reply")

	// ErrEnded is returned by Send after the callee ended the call.
	ErrEnded = errors.New("link: the call has ended")

	// ErrServed is returned by Listener.Sessions when it was called before.
	ErrServed = errors.New("another server serves this listener")
)

// A CallHeader says which call to make. Both sides may read it for as long as
// the call lasts; nobody writes to it, or to its Profile, once the call has begun.
type CallHeader struct {
	*Profile
	Method   string
	Metadata metadata.MD // what the user sends, validated; nil for none
	Deadline time.Time   // zero for none

	// Caller is the caller's own context, nil where the call came over a wire. The
	// callee uses its deadline and its end, never its values.
	Caller context.Context
}

// End is how a call ended: with the peer's status and trailer.
type End struct {
	Status  *status.Status // nil for OK
	Trailer metadata.MD
}

// IsClosed reports whether a session's Done or Ended is closed.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Peer describes the other side of a session.
type Peer struct {
	Addr      net.Addr
	LocalAddr net.Addr
	AuthInfo  credentials.AuthInfo

	// OneShot is true where Session.Call has a short cut. Elsewhere it would
	// return ErrNoCall.
	OneShot bool

	// Shares is true where the peer writes to no message that it has sent or
	// received, so that messages may be shared with it.
	Shares bool

	// Local is true where the caller's own context reaches the callee, so
	// that no deadline needs to be kept on the callee's side.
	Local bool
}
