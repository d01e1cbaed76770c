package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/bench/internal/benchpb"
)

// rawHead is the size of a message's length prefix in bytes.
const rawHead = 4

// rawConn sends and receives messages with a length prefix. It reuses its buffers.
type rawConn struct {
	net.Conn
	buf []byte // the received message
	out []byte // the message to send
}

// receive returns the next message with its prefix. It is valid until the next receive.
func (c *rawConn) receive() ([]byte, error) {
	if c.buf == nil {
		c.buf = make([]byte, 64<<10)
	}
	got, err := io.ReadAtLeast(c, c.buf, rawHead)
	if err != nil {
		return nil, err
	}
	size := rawHead + int(binary.BigEndian.Uint32(c.buf))
	switch {
	case size > maxMessage:
		return nil, fmt.Errorf("a message of %d bytes", size)
	case got > size:
		return nil, errors.New("a message before it was due")
	case size > len(c.buf):
		c.buf = append(c.buf, make([]byte, size-len(c.buf))...)
	}
	_, err = io.ReadFull(c, c.buf[got:size])
	return c.buf[:size], err
}

// serveRaw sends back every message. It ignores the services.
func serveRaw(network, address string, _ Services) (string, func(), error) {
	return serveRawAs(network, address, func([]byte) {})
}

// serveRawAs is serveRaw, but answer changes each message first.
func serveRawAs(network, address string, answer func(body []byte)) (string, func(), error) {
	return serveMessages(network, address, func(c *rawConn) error {
		message, err := c.receive()
		if err != nil {
			return err
		}
		answer(message[rawHead:])
		_, err = c.Write(message)
		return err
	})
}

// serveMessages calls answer again and again for each connection, until it fails.
func serveMessages(network, address string, answer func(*rawConn) error) (string, func(), error) {
	return serveOn(network, address, func(lis net.Listener) (run, stop func()) {
		var mu sync.Mutex
		var all sync.WaitGroup
		conns := make(map[net.Conn]bool)
		run = func() {
			defer all.Wait()
			for {
				conn, err := lis.Accept()
				if err != nil {
					return
				}
				mu.Lock()
				conns[conn] = true
				mu.Unlock()
				all.Go(func() {
					defer conn.Close()
					for c := (&rawConn{Conn: conn}); answer(c) == nil; {
					}
				})
			}
		}
		return run, func() {
			_ = lis.Close()
			mu.Lock()
			defer mu.Unlock()
			for conn := range conns {
				_ = conn.Close()
			}
		}
	})
}

func dialMessages(network, address string) (*rawConn, error) {
	conn, err := net.Dial(network, address)
	return &rawConn{Conn: conn}, err
}

func dialRaw(network, address string, _ Row) (Conn, error) {
	conn, err := dialMessages(network, address)
	if err != nil {
		return Conn{}, err
	}
	swap := func(sent []byte) ([]byte, error) {
		if _, err := conn.Write(sent); err != nil {
			return nil, err
		}
		return conn.receive()
	}
	return swapping(swap, func() { _ = conn.Close() }), nil
}

// swapping returns a Conn that only exchanges bytes.
func swapping(swap func(sent []byte) ([]byte, error), end func()) Conn {
	c := &rawClient{swap: swap}
	return Conn{Test: c, Records: c, Close: end}
}

// rawClient imitates a unary call: it sends a message's bytes and receives as many. It
// encodes the message once for all calls.
type rawClient struct {
	testpb.TestServiceClient // nil: only the methods below exist
	message                  proto.Message
	sent                     []byte

	// swap sends a message with its prefix, and returns the reply with its prefix. The
	// reply is valid until the next swap.
	swap func(sent []byte) ([]byte, error)
}

// prefixed returns the message after its length, in buf if it is large enough.
func prefixed(buf []byte, m proto.Message) ([]byte, error) {
	buf = binary.BigEndian.AppendUint32(buf[:0], uint32(proto.Size(m)))
	return (proto.MarshalOptions{}).MarshalAppend(buf, m)
}

// exchange sends a message and returns the reply without its prefix.
func (c *rawClient) exchange(in proto.Message) (body []byte, err error) {
	if c.message != in {
		c.message = in
		if c.sent, err = prefixed(c.sent, in); err != nil {
			return nil, err
		}
	}
	got, err := c.swap(c.sent)
	if err != nil {
		return nil, err
	}
	return got[rawHead:], nil
}

// same returns in if the reply has the same bytes, and otherwise decodes the reply.
func same[M proto.Message](c *rawClient, in, out M) (M, error) {
	body, err := c.exchange(in)
	if err != nil || bytes.Equal(body, c.sent[rawHead:]) {
		return in, err
	}
	return out, proto.Unmarshal(body, out)
}

func (c *rawClient) EmptyCall(_ context.Context, in *testpb.Empty, _ ...grpc.CallOption) (*testpb.Empty, error) {
	return same(c, in, new(testpb.Empty))
}

// UnaryCall leaves the comparison to the caller, which does not compare every byte each
// time. The payload is the end of the message.
func (c *rawClient) UnaryCall(_ context.Context, in *testpb.SimpleRequest, _ ...grpc.CallOption) (*testpb.SimpleResponse, error) {
	body, err := c.exchange(in)
	if err != nil {
		return nil, err
	}
	if len(body) != len(c.sent)-rawHead {
		return nil, check("bytes in the reply", len(body), len(c.sent)-rawHead)
	}
	return &testpb.SimpleResponse{Payload: &testpb.Payload{Body: body[len(body)-len(in.GetPayload().GetBody()):]}}, nil
}

func (c *rawClient) Echo(_ context.Context, in *benchpb.Record, _ ...grpc.CallOption) (*benchpb.Record, error) {
	return same(c, in, new(benchpb.Record))
}

func (c *rawClient) EchoPair(_ context.Context, in *benchpb.Pair, _ ...grpc.CallOption) (*benchpb.Pair, error) {
	return same(c, in, new(benchpb.Pair))
}

func (c *rawClient) EchoText(_ context.Context, in *benchpb.Text, _ ...grpc.CallOption) (*benchpb.Text, error) {
	return same(c, in, new(benchpb.Text))
}
