// Package link is the interface between gRPC's semantics and the transports. Above it,
// internal/call implements status codes, interceptors and cardinality. Below it, transports
// implement memory, sockets and flow control. Package link holds the types that both share. It
// starts no goroutine and does no I/O.
//
// A transport carries streams of frames. A frame's message is live (a Go value and its codec) or
// encoded (bytes). The in-process transport hands live messages over without marshalling; other
// transports encode them. No transport interprets a status.
package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/wait"
)

// A Session carries calls between two peers, in both directions. Its methods are
// safe for concurrent use.
type Session interface {
	// Invoke makes a whole unary call and sets c's results. It returns nil if the peer ended the
	// call, with any status. It returns the reason if the caller left or the session failed. If the
	// call must be made with NewStream, Invoke does nothing and returns ErrNoCall. After it has
	// returned, only a callee in the same process may still use c.
	Invoke(ctx context.Context, c *UnaryCall) error

	// NewStream opens a stream. ctx bounds only the opening: when it ends
	// later, the caller must abort the stream.
	NewStream(ctx context.Context, o *CallHeader) (Stream, error)

	// Drain tells the peer to make no more calls, and lets running calls finish. Calls that the
	// peer made before it learned of the drain are accepted. The channel that Drain returns is
	// closed when no more calls are accepted: as soon as none can be on its way or, if the peer
	// does not answer, after a bounded time. The peer must learn of the drain before it learns
	// that a call was refused because of it: a retry of that call must not pick this session. This
	// side can still make calls to the peer.
	Drain() <-chan struct{}

	// Retire closes Done, so that no new calls are made, and drains.
	Retire()

	// Written returns a channel that is closed once this process may exit without losing data that
	// this side has sent for the peer's ended calls, in the sense of Acceptor's Gone. Written
	// is used after Drain.
	Written() <-chan struct{}

	// Close ends the session and aborts all its calls for reason. It does not wait. Remaining data
	// of ended calls is sent after Close returns. The Acceptor's Gone is called after that.
	Close(reason error) error

	// Done is closed when no more calls can be made.
	Done() <-chan struct{}

	// Ended is closed when the session has ended and its calls were aborted.
	Ended() <-chan struct{}

	// Peer describes the other side.
	Peer() *Peer
}

// An Acceptor handles the calls that the peer of a session makes.
type Acceptor interface {
	// HandleStream is called for each stream. Without Caps.Parallel one goroutine at a time calls
	// it. It returns at once, or when there is room for the stream. An error refuses the stream.
	// The acceptor must not use a stream that it has refused.
	HandleStream(s Stream, o *CallHeader) error

	// Closed is called once, when the session has ended. Calls that still run
	// are aborted for reason.
	Closed(reason error)

	// Gone is called once, after Closed, when this process may exit without losing what was sent:
	// the peer has received it, can still read it from the operating system, or will not read it. A
	// session whose peer stops reading gives up after some seconds, so Gone is always called.
	Gone()

	// Terms returns the acceptor's terms for the session.
	Terms() Terms
}

// Terms are an Acceptor's settings for an in-process session, which has no handshake to negotiate
// them.
type Terms struct {
	// Window is the flow-control window, in bytes, for messages from the caller
	// on each stream; 0 for the session's own choice.
	Window int

	// Share says that the callee writes to no message that it has sent or received. ShareBytes
	// says that it writes to no bytes that come from users' codecs.
	Share, ShareBytes bool

	// Admit is called before each call is handled, and waits until the call may
	// run. It may be nil. It returns the context's error, or an error that refuses the call.
	Admit func(context.Context) error
}

// A Dialer opens sessions.
type Dialer interface {
	// Dial opens a session. Its error says what is wrong with the target.
	Dial(ctx context.Context) (Session, error)
}

// A Listener is a net.Listener whose peers arrive as sessions rather than as
// byte streams. Its Accept returns an error that says so.
type Listener interface {
	net.Listener

	// Sessions calls accept with the server's end of each session that a peer
	// opens, and passes its calls to the Acceptor that accept returns. A nil
	// Acceptor refuses the session. Sessions returns when the listener is closed.
	Sessions(accept func(Session) Acceptor) error
}

// A Method describes a method to a transport before a call.
type Method struct {
	Known         bool // the method is registered; otherwise the other fields mean nothing
	Streams       bool // either side may send any number of messages
	NoSideEffects bool // its idempotency level is NO_SIDE_EFFECTS
}

// A Stream carries one call's frames, in order, in both directions. One
// goroutine may send messages while another calls Recv. Any goroutine may send
// a frame without a message, or call another method, at any time.
type Stream interface {
	// Send sends f. It blocks until there is credit for the message. When it
	// returns, the message was captured and f may be reused.
	//
	// Send returns ErrEnded once the peer has ended the call or this side has sent its own End.
	// Both also unblock a waiting Send. After Abort it returns the reason. A *SendError means that
	// the message could not be encoded, and nothing was sent.
	Send(f *Frame) error

	// Recv waits for the next frame. If f.Dst is set, the frame may hold a
	// message. Otherwise Recv waits for a header or an end only, and messages
	// stay queued. Frames that arrived before Abort are delivered first. A
	// *RecvError means that the message arrived but could not be put in f.Dst.
	Recv(f *Frame) error

	// Abort ends the stream for reason, which the peer learns. The first reason wins. Abort
	// unblocks Send and Recv. After a callee has sent its End, its Abort does nothing.
	Abort(reason error)

	// OnAbort sets the function f that is called once, with the reason, when either side aborts
	// the stream. If it was aborted before, f is called at once. The callee's f is called before
	// its Send and Recv return. The caller's f is called when all frames that have arrived can be
	// received without waiting. OnAbort is called at most once, before several goroutines use the
	// stream.
	OnAbort(f func(reason error))
}

// MessageOverhead is the size, in bytes, that flow control and stats add to each
// message: the length of gRPC's message header.
const MessageOverhead = 5

// EncodingKey is the header in which a callee names the compressor of its messages, if it differs
// from the call's. gRPC reserves the key, so no user can set it.
const EncodingKey = "grpc-encoding"

// Errors of sessions and streams.
var (
	// ErrUnprocessed is wrapped by errors of Invoke and NewStream, and by reasons of aborts, if
	// the peer's handler never saw the call. Such a call can safely be retried.
	ErrUnprocessed = errors.New("the call was not processed")

	// ErrExhausted is wrapped by errors of sessions and streams that reached a limit.
	ErrExhausted = errors.New("a limit was reached")

	// ErrBroken is wrapped by the reason of a stream on which one side violated the protocol.
	ErrBroken = errors.New("the rules of the call were broken")

	// ErrOneWay is wrapped by errors of Invoke and NewStream if the peer takes no calls at all.
	ErrOneWay = errors.New("the peer takes no calls")

	// ErrForeign is wrapped by the errors of a Dialer whose server speaks another protocol. A
	// retry fails until that server is replaced.
	ErrForeign = errors.New("the peer speaks another protocol")

	// ErrNoCall is returned by Session.Invoke if the call must be made as a
	// stream: over transports without a shortcut, and to streaming methods.
	ErrNoCall = errors.New("link: make this call with NewStream")

	// ErrReplies is returned by Session.Invoke if the callee has sent more than one message.
	ErrReplies = errors.New("link: more than one reply")

	// ErrEnded is returned by Send after the callee ended the call.
	ErrEnded = errors.New("link: the call has ended")

	// ErrServed is returned by all calls of Listener.Sessions but the first.
	ErrServed = errors.New("another server serves this listener")
)

// A CallHeader describes a call to make. Both sides may read it while the call
// lasts. It and its Profile are immutable once the call has begun.
type CallHeader struct {
	*Profile
	Method   string
	Metadata metadata.MD // the user's, validated; nil for none, or if it is in Packed
	Packed   Packed      // a large amount of the user's metadata in encoded form; may be nil
	Deadline time.Time   // zero for none
	MaxReply int         // the largest message that the caller accepts, in bytes; 0 if unknown; set for a UnaryCall

	// Caller is the caller's context, or nil if the call came from another process. The callee
	// uses its deadline and its end, but never its values.
	Caller context.Context
}

// A UnaryCall is a unary call that a caller makes with Session.Invoke. The caller sets the first
// group of fields before. The second group is valid once Session.Invoke has returned nil.
type UnaryCall struct {
	CallHeader

	Codec   message.Codec // the caller's, for request and reply
	Request any           // a live message, or an encoded *Message if Codec cannot copy without encoding
	Reply   any           // destination of the reply

	Header     metadata.MD // nil if none was sent
	End                    // how the call ended
	ReplyError error       // the error of Message.DecodeInto if a reply could not be put in Reply
	Replied    bool        // a reply arrived; Reply holds it if ReplyError is nil
	ReplySize  int         // of the reply's encoding, in bytes; 0 without a reply

	Shared any // what [Caps.NewCall] has allocated with the call for its session
}

// Message returns the request as a message.
func (c *UnaryCall) Message() *message.Message {
	if m, encoded := c.Request.(*message.Message); encoded {
		return m
	}
	live := message.Live(c.Request, c.Codec)
	return &live
}

// Packed is metadata in encoded form. A map can take thirty times as much memory, so the map is
// made only when it is needed.
type Packed interface {
	// Unpack decodes the metadata into a new map. It is safe for concurrent use.
	Unpack() metadata.MD
}

// Sent returns the user's metadata, nil for none. The caller must not modify it.
func (o *CallHeader) Sent() metadata.MD {
	if o.Packed != nil {
		return o.Packed.Unpack()
	}
	return o.Metadata
}

// End is how the callee ended a call.
type End struct {
	Status  *status.Status // nil for OK
	Trailer metadata.MD

	// Late says that the deadline of the call's header had passed when the end arrived. The
	// caller's transport sets it, because the end may be received later and only the transport
	// knows when it arrived.
	Late bool

	// Local says that the caller's transport has made this end, because the peer's answer was not
	// gRPC's and has no header. gRPC's caller then sees no content-type.
	Local bool
}

// Passed reports whether a call's deadline, zero for none, has passed.
func Passed(deadline time.Time) bool {
	return !deadline.IsZero() && !time.Now().Before(deadline)
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

	// Request returns the request that opened a WebSocket; nil for other connections.
	Request func() *http.Request

	Caps

	// Path is how calls travel, which may be nearer than Addr says.
	Path counters.Path

	// NotNearer says why a client got no nearer path than its TCP connection although it wanted
	// one.
	NotNearer string
}

// Caps are what a session can do.
type Caps struct {
	// Local says that the caller's context reaches the callee, so the callee needs no timer for
	// the deadline.
	Local bool

	// Blocks says that Invoke and NewStream block their goroutine even if it runs a task of an
	// event loop: see [Invoke] and [NewStream].
	Blocks bool

	// OneShot says that Session.Invoke is supported, though it may return ErrNoCall. Otherwise it always
	// does.
	OneShot bool

	// NewCall returns a new call for Session.Invoke. It may be nil: then the session takes any
	// UnaryCall, and the caller may use that again for another call.
	NewCall func() *UnaryCall

	// Parallel says that the session calls Acceptor.HandleStream from a goroutine for each
	// stream, which may wait there. Otherwise one goroutine reads all of the session.
	Parallel bool

	// Undecided says that the connection may be handed over to another server before it carries a
	// call. Stats handlers learn of the connection only with its first call.
	Undecided bool

	// Shares says that the peer writes to no message that it has sent or received, so messages
	// may be shared with it. SharesBytes says the same of bytes that come from users' codecs.
	Shares, SharesBytes bool

	// Draft returns n bytes of memory that the peer reads, in which the caller builds a message.
	// The memory belongs to the caller until the caller calls end, once. A message is sent without
	// a copy if [message.Codec.Sized] returns a part of that memory. Draft returns nil if no such memory
	// is free, and Draft is nil if the transport has none. It is safe for concurrent use.
	Draft func(n int) (b []byte, end func())
}

// A Frame is passed by one Send or Recv of a stream. Any subset of its parts may be set. Their
// order within a frame is header, message, end.
type Frame struct {
	// Header is the response header. If there is a header, the field is not nil, but may be empty.
	// It must not be modified after it was sent.
	Header metadata.MD

	// Msg is the message to send if HasMsg is set.
	Msg    message.Message
	HasMsg bool

	// More says that the next frame follows at once. A transport may send both together.
	More bool

	// EndSend says that the caller sends no more.
	EndSend bool

	// End ends the call. It is in the last frame that the callee sends.
	End *End

	// Sink is the destination for a received message. Recv sets Got if it has put one there.
	message.Sink
	Got bool
}

// Reset clears the results of the last Recv and keeps the Sink. Transports call it
// at the start of Recv.
func (f *Frame) Reset() { f.Header, f.End, f.EndSend, f.Got, f.Size = nil, nil, false, false, 0 }

// An InlineStream is a callee's Stream that can run its handler on the goroutine that called
// HandleStream. MayRunInline and RunInline are called only within HandleStream.
type InlineStream interface {
	// MayRunInline reports whether RunInline may be called for a handler that is likely to take d.
	// If the goroutine also serves other calls, it runs only quick handlers.
	MayRunInline(d time.Duration) bool

	// RunInline makes the session call r.Run once, after HandleStream has returned nil. Run runs on
	// the goroutine that called HandleStream, if that goroutine is still free.
	RunInline(r Runner, d time.Duration)

	// Release makes the session continue without the goroutine, because Run takes longer than
	// expected. It has no effect if the session does not need that goroutine, or if Run has
	// returned. It is safe for concurrent use.
	Release()
}

// A Runner is a call whose handler waits to be run.
type Runner interface {
	// Run runs the handler, and returns how long it took.
	Run() time.Duration
}

// A Freer is a callee's Stream whose memory another call can reuse.
type Freer interface {
	// Free says that the callee has ended the call and no longer uses the stream. It is called at
	// most once, and no other method is called after it.
	Free()
}

// A ContextError is the reason for ending a call whose caller's context ended with an error other
// than context.Canceled and context.DeadlineExceeded. Only the caller sees Err. The peer learns
// only that the call was cancelled, because gRPC's protocol has nothing more precise.
type ContextError struct{ Err error }

func (e *ContextError) Error() string {
	return fmt.Sprintf("the caller's context has ended: %v", e.Err)
}

func (e *ContextError) Unwrap() error { return context.Canceled }

// ContextEnd returns the reason for ending a call after its caller's context ended with err: err
// itself if it is an error of package context, and a *ContextError otherwise. err must not be nil.
func ContextEnd(err error) error {
	if err == context.Canceled || err == context.DeadlineExceeded {
		return err
	}
	return &ContextError{err}
}

// ContextErr returns the reason for ending a call if its caller's context, ctx, has
// ended, and nil otherwise.
func ContextErr(ctx context.Context) error {
	if err := wait.Err(ctx); err != nil {
		return ContextEnd(err)
	}
	return nil
}

// Unprocessed wraps an error to say that the peer's handler never saw the call: it wraps
// [ErrUnprocessed] as well.
type Unprocessed struct {
	Err error

	// Unsent says that nothing of the call was sent, because the session takes no calls for
	// now. Retrying is safe any number of times.
	Unsent bool
}

// Error implements error.
func (u Unprocessed) Error() string { return u.Err.Error() }

// Unwrap returns the error and ErrUnprocessed.
func (u Unprocessed) Unwrap() []error { return []error{u.Err, ErrUnprocessed} }
