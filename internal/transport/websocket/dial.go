package websocket

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	maxResponse = 64 << 10 // bytes of the answer's header
	maxReason   = 300      // bytes of the answer's body that are quoted

	reasonTime = time.Second // how long to wait for these bytes: some servers send less than they announce
)

// Dial upgrades conn to a WebSocket, by a request for target with the fields of header. The
// result is a *[PromptConn] if socket, which reads and writes conn, is not nil. If Dial fails,
// the caller must close conn.
func Dial(ctx context.Context, conn net.Conn, socket Prompt, target *url.URL, header http.Header) (net.Conn, error) {
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // never fails
	key := base64.StdEncoding.EncodeToString(nonce[:])
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	first, err := ask(conn, target, header, key)
	if !stop() {
		return nil, fmt.Errorf("the server has not answered the request for WebSocket: %w", context.Cause(ctx))
	}
	if err != nil {
		return nil, err
	}
	return newConn(conn, socket, true, first), nil
}

// ask sends the request and reads the answer. It returns the bytes after the
// answer.
func ask(conn net.Conn, target *url.URL, header http.Header, key string) (first []byte, err error) {
	req := &http.Request{Method: http.MethodGet, URL: target, Host: target.Host, Header: header.Clone()}
	if req.Header == nil {
		req.Header = make(http.Header)
	}
	for field, value := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket",
		"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key, "Sec-WebSocket-Protocol": Subprotocol,
	} {
		req.Header.Set(field, value)
	}
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	in := bufio.NewReader(&io.LimitedReader{R: conn, N: maxResponse})
	resp, err := http.ReadResponse(in, req)
	if err != nil {
		return nil, fmt.Errorf("the server does not answer the request for WebSocket as an HTTP/1.1 server: %w", err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		_ = conn.SetReadDeadline(time.Now().Add(reasonTime))
	}
	if err := checkAnswer(resp, key); err != nil {
		return nil, err
	}
	first, _ = in.Peek(in.Buffered())
	return append([]byte(nil), first...), nil
}

// checkAnswer returns an error if the server has not agreed to speak nearcall's protocol.
func checkAnswer(resp *http.Response, key string) error {
	h := resp.Header
	switch protocols := tokens(h, "Sec-WebSocket-Protocol"); {
	case resp.StatusCode != http.StatusSwitchingProtocols:
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxReason))
		_ = resp.Body.Close()
		if t := strings.TrimSpace(string(text)); t != "" {
			return fmt.Errorf("the server refuses WebSocket: %s: %.300q", resp.Status, t)
		}
		return fmt.Errorf("the server refuses WebSocket: %s", resp.Status)
	case !HasToken(h, "Upgrade", "websocket"), !HasToken(h, "Connection", "Upgrade"), h.Get("Sec-WebSocket-Accept") != acceptKey(key):
		return errors.New("the server does not answer as a WebSocket server")
	case len(protocols) != 1 || protocols[0] != Subprotocol:
		return fmt.Errorf("the WebSocket server does not speak nearcall: it chose the subprotocol %.100q, not %s", h.Get("Sec-WebSocket-Protocol"), Subprotocol)
	case h.Get("Sec-WebSocket-Extensions") != "":
		return fmt.Errorf("the server uses a WebSocket extension that nobody asked for: %.100q", h.Get("Sec-WebSocket-Extensions"))
	}
	return nil
}
