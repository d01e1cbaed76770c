package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// serveProtobuf answers requests with the replies of the services' handlers. A request is a
// method's full name, a zero byte and the message.
func serveProtobuf(network, address string, s Services) (string, func(), error) {
	handlers := make(map[string]func(decode func(any) error) (any, error))
	for _, service := range registryOf(s) {
		for _, m := range service.desc.Methods {
			handlers["/"+service.desc.ServiceName+"/"+m.MethodName] = func(decode func(any) error) (any, error) {
				return m.Handler(service.impl, context.Background(), decode, nil)
			}
		}
	}
	return serveMessages(network, address, func(c *rawConn) error {
		request, err := c.receive()
		if err != nil {
			return err
		}
		name, body, _ := bytes.Cut(request[rawHead:], []byte{0})
		handler := handlers[string(name)]
		if handler == nil {
			return fmt.Errorf("no method %q", name)
		}
		out, err := handler(func(in any) error { return proto.Unmarshal(body, in.(proto.Message)) })
		if err != nil {
			return err
		}
		return c.send("", out.(proto.Message))
	})
}

// send sends the length, prefix and the message.
func (c *rawConn) send(prefix string, m proto.Message) (err error) {
	c.out = append(binary.BigEndian.AppendUint32(c.out[:0], 0), prefix...)
	if c.out, err = (proto.MarshalOptions{}).MarshalAppend(c.out, m); err != nil {
		return err
	}
	binary.BigEndian.PutUint32(c.out, uint32(len(c.out)-rawHead))
	_, err = c.Write(c.out)
	return err
}

func dialProtobuf(network, address string, _ Row) (Conn, error) {
	c, err := dialMessages(network, address)
	if err != nil {
		return Conn{}, err
	}
	return stubs(protobufClient{c}, func() { _ = c.Close() }), nil
}

// protobufClient makes unary calls for gRPC's generated code, one at a time.
type protobufClient struct{ conn *rawConn }

func (c protobufClient) Invoke(_ context.Context, method string, in, out any, _ ...grpc.CallOption) error {
	if err := c.conn.send(method+"\x00", in.(proto.Message)); err != nil {
		return err
	}
	got, err := c.conn.receive()
	if err != nil {
		return err
	}
	return proto.Unmarshal(got[rawHead:], out.(proto.Message))
}

func (protobufClient) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("there are no streams")
}
