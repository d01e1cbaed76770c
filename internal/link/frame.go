package link

import "google.golang.org/grpc/metadata"

// A Frame is what one Send or Recv of a stream passes. Any subset of its parts may be
// set. Their order within a frame is header, message, end.
type Frame struct {
	// Header is the response header. If there is a header, the field is not nil, but may be empty.
	// It must not be modified after it was sent.
	Header metadata.MD

	// Msg is the message to send if HasMsg is set.
	Msg    Message
	HasMsg bool

	// More says that the next frame follows at once. A transport may send both together.
	More bool

	// EndSend says that the caller sends no more.
	EndSend bool

	// End ends the call. It is in the last frame that the callee sends.
	End *End

	// Sink is the destination for a received message. Recv sets Got if it has put one there.
	Sink
	Got bool
}

// A Sink is the destination of a received message.
type Sink struct {
	Dst   any   // nil: no message is wanted
	Codec Codec // how the receiver decodes
	Limit int   // the largest message the receiver accepts, in bytes

	// Compressor is the compressor of the call, "" or "identity" for none. In process nothing is
	// compressed, but the error for a message that is too large depends on it.
	Compressor string

	Size int // the result: the size of the message's encoding, in bytes; 0 without a message
}

// Reset clears the results of the last Recv and keeps the Sink. Transports call it
// at the start of Recv.
func (f *Frame) Reset() { f.Header, f.End, f.EndSend, f.Got, f.Size = nil, nil, false, false, 0 }
