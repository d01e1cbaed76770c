package call

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
)

// A carried is the server's side of a call over a [link.Stream]. For a unary method it is the
// whole state of a call above the stream. Only it stays in memory if the handler keeps its
// context. For a streaming method it is part of a serverStream.
//
// Invariant: the goroutine that runs the call uses the transport stream until it calls leave. Others use
// it between use and unuse. Once the transport stream is freed, nobody uses it.
type carried struct {
	call   serverCall
	stream *serverStream // nil for a unary method
	codec  link.Codec

	// headerMu is held while a header is sent without a message, so that no message overtakes it.
	headerMu sync.Mutex
	end      link.End // how the call was ended

	// Guarded by call.mu.
	transportStream link.Stream // nil once it was freed
	uses            int         // how many other goroutines use transportStream
	left            bool        // the goroutine that ran the call has called leave

	// Used only by the goroutine that receives.
	recvOnce bool // a message was received
	recvEnd  bool // the caller sends no more
}

// newCarried returns a call of m that s carries.
func newCarried(s link.Stream, c *serverConn, m *method, o *link.CallHeader) *carried {
	var r *carried
	if m.stream != nil {
		stream := new(serverStream)
		r = &stream.carried
		r.stream = stream
	} else {
		r = new(carried)
	}
	r.call.init(c, m, o)
	r.transportStream, r.call.carried = s, r
	return r
}

// use reports whether the transport stream may be used until unuse is called.
func (r *carried) use() bool {
	r.call.mu.Lock()
	defer r.call.mu.Unlock()
	if r.left {
		return false
	}
	r.uses++
	return true
}

func (r *carried) unuse() {
	r.call.mu.Lock()
	r.uses--
	r.freeUnused()
}

// leave records that the goroutine that has run the call no longer uses the transport stream. The call has
// ended.
func (r *carried) leave() {
	r.call.mu.Lock()
	r.left = true
	r.freeUnused()
}

// freeUnused frees the transport stream if nobody uses it. Called with call.mu held, which it releases.
func (r *carried) freeUnused() {
	if !r.left || r.uses > 0 {
		r.call.mu.Unlock()
		return
	}
	f, ok := r.transportStream.(link.Freer)
	r.transportStream = nil
	r.call.mu.Unlock()
	if ok {
		f.Free()
	}
}

// abort ends the call for reason, on both sides, if it has not ended.
func (r *carried) abort(reason error) {
	if r.use() {
		r.transportStream.Abort(reason)
		r.unuse()
	}
}

// readRequest is readRequest of serverCall. It fails once the handler has returned.
func (r *carried) readRequest(m any) error {
	if !r.use() {
		return contextStatus(context.Canceled)
	}
	defer r.unuse() // deferred, because the codec may panic
	f := frames.Get().(*link.Frame)
	err := r.receive(m, f)
	freeFrame(f)
	if err != nil && err != io.EOF {
		r.call.finish(status.Convert(err))
	}
	return err
}

// receive receives a message into m, by means of f. If the method has one request, receive also
// receives the end that must follow.
func (r *carried) receive(m any, f *link.Frame) error {
	c := &r.call
	err := r.next(m, f)
	if err == io.EOF && !c.method.clientStreams() && !r.recvOnce {
		return status.Error(codes.Internal, "cardinality violation: received no request message from non-client-streaming RPC")
	}
	if err != nil {
		return err
	}
	r.recvOnce = true
	c.stats.received(m, r.codec, f.Size)
	if c.method.clientStreams() {
		return nil
	}
	switch err := r.next(m, f); err {
	case io.EOF:
		return nil
	case nil:
		return status.Error(codes.Internal, "cardinality violation: received multiple request messages for non-client-streaming RPC")
	default:
		return err
	}
}

// next receives one message into m, by means of f. It returns io.EOF after the last message.
func (r *carried) next(m any, f *link.Frame) error {
	c := &r.call
	if r.recvEnd {
		return io.EOF
	}
	if err := c.Err(); err != nil {
		r.transportStream.Abort(err)
	}
	f.Sink = link.Sink{Dst: wanted(m), Codec: codec.Until(r.codec, c), Limit: c.maxRecv()}
	if c.conn.peer.Local {
		f.Compressor = c.open.Encoding
	}
	for {
		err := r.transportStream.Recv(f)
		r.recvEnd = f.EndSend
		if err != nil {
			f.Dst = nil
			return c.brokenError(err)
		}
		if f.Got || r.recvEnd {
			f.Dst = nil
			if !f.Got {
				return io.EOF
			}
			return nil
		}
	}
}
