package link

import "google.golang.org/grpc/metadata"

// A Frame is one step of a stream. Any subset of its parts may be set; their
// order within a frame is header, message, end.
type Frame struct {
	// Header is the response header: non-nil, perhaps empty, when there is
	// one. Nobody writes to it once it was sent.
	Header metadata.MD

	// Msg is the message to send when HasMsg is set.
	Msg    Message
	HasMsg bool

	// EndSend says that the caller sends no more.
	EndSend bool

	// End is the last frame that the callee sends.
	End *End

	// Sink says, when receiving, where a message goes. Got is set when one
	// was put there.
	Sink
	Got bool
}

// A Sink is where a received message goes.
type Sink struct {
	Dst   any   // nil: no message is wanted
	Codec Codec // how the receiver decodes
	Limit int   // the largest message it takes, in bytes
}

// Reset clears what the last Recv reported, keeping the Sink. Transports call
// it at the start of Recv.
func (f *Frame) Reset() { f.Header, f.End, f.EndSend, f.Got = nil, nil, false, false }
