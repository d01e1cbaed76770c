package nearconnect

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime/debug"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// Codec returns c as a codec of gRPC. A client passes it to [NewTransport] with
// [google.golang.org/grpc.ForceCodecV2]. A server registers it with
// [google.golang.org/grpc/encoding.RegisterCodecV2], under its name; one for JSON is there already,
// but not for clients that speak gRPC over HTTP/2. c's methods get context.Background. A panic of c
// becomes an error, because gRPC does not recover panics when it encodes a reply.
func Codec(c connect.Codec) encoding.CodecV2 { return codec{c} }

type codec struct{ connect.Codec }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	var b bytes.Buffer
	if err := c.guarded(func() error { return c.MarshalWrite(context.Background(), &b, v) }); err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(b.Bytes())}, nil
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	r := data.Reader()
	defer r.Close()
	return c.guarded(func() error { return c.UnmarshalRead(context.Background(), r, v) })
}

func (c codec) guarded(f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			logger.Errorf("the codec %q panicked: %v\n%s", c.Name(), value, debug.Stack())
			err = errors.New("the codec panicked")
		}
	}()
	return f()
}

// Compressor returns c as a compressor of gRPC, with the same name. Both sides register it with
// [google.golang.org/grpc/encoding.RegisterCompressor], and a client selects it with
// [google.golang.org/grpc.UseCompressor]. gRPC has a compressor "gzip" already.
func Compressor(c connect.Compressor) encoding.Compressor { return compressor{c} }

type compressor struct{ connect.Compressor }

// Decompress implements [encoding.Compressor], whose reader has no Close.
func (c compressor) Decompress(r io.Reader) (io.Reader, error) {
	rc, err := c.Compressor.Decompress(r)
	if err != nil {
		return nil, err
	}
	return &untilEnd{rc: rc}, nil
}

// untilEnd reads from rc and closes it at its end. A reader that gRPC abandons, because a message
// is too large, is left to the garbage collector.
type untilEnd struct {
	rc  io.ReadCloser
	end error // not nil once rc is closed
}

func (u *untilEnd) Read(p []byte) (int, error) {
	if u.end != nil {
		return 0, u.end
	}
	n, err := u.rc.Read(p)
	if err != nil {
		u.end = err
		if failed := u.rc.Close(); failed != nil && err == io.EOF {
			u.end = failed
		}
	}
	return n, u.end
}
