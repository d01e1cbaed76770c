package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"

	"github.com/coder/websocket"
)

// webNetwork is nearcall's network of WebSockets. Its addresses are URLs without a scheme.
const webNetwork = "ws"

// webSocketRivals returns the rivals of nearcall over a WebSocket. Except for the limit, they
// are what one would use between the same processes without one.
func webSocketRivals(parked int) []Rival {
	over := func(stack, network string) func(Row) (Conn, error) {
		return overPeer(peerSetup{Stack: stack, Network: network, Parked: parked})
	}
	return []Rival{
		{Name: "nearcall", Dial: over("nearcall", webNetwork), Flat: true, Note: "over ws://HOST:PORT/."},
		{Name: "nearcall-tcp", Dial: over("nearcall", "tcp"), Flat: true, Note: "over tcp:HOST:PORT, without WebSocket."},
		{Name: "grpc-go", Dial: over("grpc-go", "tcp"), Flat: true, Note: "over TCP, as connect-http2 is."},
		{Name: "connect-http2", Dial: over("connect-http2", "tcp"), Note: http2Note},
		{Name: "raw", Limit: true, Dial: over("raw-websocket", "tcp"), Note: "no RPC: as many bytes there and back in one message of a WebSocket, by github.com/coder/websocket.", Without: withoutCalls("raw")},
	}
}

// A webSocket exchanges whole messages. It reuses its buffer.
type webSocket struct {
	conn *websocket.Conn
	buf  []byte
}

// receive returns the next message. It is valid until the next receive.
func (w *webSocket) receive(ctx context.Context) ([]byte, error) {
	_, r, err := w.conn.Reader(ctx)
	if err != nil {
		return nil, err
	}
	w.buf = w.buf[:0]
	for {
		w.buf = slices.Grow(w.buf, 512)
		n, err := r.Read(w.buf[len(w.buf):cap(w.buf)])
		w.buf = w.buf[:len(w.buf)+n]
		if err == io.EOF {
			return w.buf, nil
		}
		if err != nil {
			return nil, err
		}
		if len(w.buf) > maxMessage {
			return nil, fmt.Errorf("a message of more than %d bytes", maxMessage)
		}
	}
}

// echo sends back every message, until the connection fails or ctx ends.
func (w *webSocket) echo(ctx context.Context) {
	for {
		message, err := w.receive(ctx)
		if err == nil {
			err = w.conn.Write(ctx, websocket.MessageBinary, message)
		}
		if err != nil {
			return
		}
	}
}

// serveRawWebSocket sends back every message. It ignores the services.
func serveRawWebSocket(network, address string, _ Services) (string, func(), error) {
	return serveOn(network, address, func(lis net.Listener) (run, stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		var all sync.WaitGroup
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			all.Add(1)
			defer all.Done()
			conn, err := websocket.Accept(w, r, nil)
			if err != nil {
				return
			}
			defer conn.CloseNow()
			conn.SetReadLimit(-1)
			(&webSocket{conn: conn}).echo(ctx)
		})}
		return func() {
				_ = srv.Serve(lis)
				all.Wait()
			}, func() {
				cancel()
				_ = srv.Close()
			}
	})
}

func dialRawWebSocket(network, address string, _ Row) (Conn, error) {
	ctx, cancel := context.WithCancel(context.Background())
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	conn, _, err := websocket.Dial(ctx, "ws://bench/", &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		cancel()
		return Conn{}, err
	}
	conn.SetReadLimit(-1)
	w := &webSocket{conn: conn}
	swap := func(sent []byte) ([]byte, error) {
		if err := conn.Write(ctx, websocket.MessageBinary, sent); err != nil {
			return nil, err
		}
		return w.receive(ctx)
	}
	return swapping(swap, func() {
		cancel()
		_ = conn.CloseNow()
	}), nil
}
