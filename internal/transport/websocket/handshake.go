package websocket

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// maxAnswer is how long it may take to write the answer to a request for an upgrade.
const maxAnswer = 5 * time.Second

// acceptKey returns the answer to a Sec-WebSocket-Key: section 4.2.2 of RFC 6455.
func acceptKey(key string) string {
	h := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(h[:])
}

// tokens returns the elements of a header field that is a list.
func tokens(h http.Header, field string) (all []string) {
	for _, list := range h.Values(field) {
		for name := range strings.SplitSeq(list, ",") {
			all = append(all, strings.TrimSpace(name))
		}
	}
	return all
}

// HasToken reports whether a header field, a list, contains token.
func HasToken(h http.Header, field, token string) bool {
	return slices.ContainsFunc(tokens(h, field), func(name string) bool { return strings.EqualFold(name, token) })
}

// Check returns why a request cannot be upgraded, with the status code of the answer. The code is
// 0 if the request can be upgraded. Check adds the fields that a refusal needs to the answer's
// header.
func Check(r *http.Request, answer http.Header) (code int, why string) {
	if code, why = check(r); code == http.StatusUpgradeRequired {
		answer.Add("Connection", "Upgrade") // it can say "close" already
		answer.Set("Upgrade", "websocket")
		answer.Set("Sec-WebSocket-Version", "13")
	}
	return code, why
}

func check(r *http.Request) (code int, why string) {
	key, err := base64.StdEncoding.DecodeString(r.Header.Get("Sec-WebSocket-Key"))
	protocols := tokens(r.Header, "Sec-WebSocket-Protocol")
	switch {
	case r.Method != http.MethodGet || r.ProtoMajor != 1 || r.ProtoMinor == 0:
		return http.StatusBadRequest, fmt.Sprintf("a request for WebSocket is a GET of HTTP/1.1, and this is a %.20s of %s", r.Method, r.Proto)
	case !HasToken(r.Header, "Upgrade", "websocket") || !HasToken(r.Header, "Connection", "Upgrade"):
		return http.StatusUpgradeRequired, "only WebSockets are opened here; a proxy must pass on the headers Upgrade and Connection"
	case r.Header.Get("Sec-WebSocket-Version") != "13":
		return http.StatusUpgradeRequired, "this server speaks version 13 of WebSocket"
	case err != nil || len(key) != 16:
		return http.StatusBadRequest, "Sec-WebSocket-Key is not the base64 of 16 bytes"
	case !slices.Contains(protocols, Subprotocol):
		return http.StatusBadRequest, fmt.Sprintf("the WebSocket must ask for the subprotocol %s, and asks for %.100q", Subprotocol, protocols)
	}
	return 0, ""
}

// Accept answers a request that [Check] has accepted. conn is its connection, and first was read
// from it after the request. The result is a *[PromptConn] if socket, which reads and writes
// conn, is not nil. Accept closes conn if it fails.
func Accept(r *http.Request, conn net.Conn, socket Prompt, first []byte) (net.Conn, error) {
	answer := "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Accept: " + acceptKey(r.Header.Get("Sec-WebSocket-Key")) + "\r\nSec-WebSocket-Protocol: " + Subprotocol + "\r\n\r\n"
	_ = conn.SetDeadline(time.Now().Add(maxAnswer))
	if _, err := conn.Write([]byte(answer)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return newConn(conn, socket, false, first), nil
}

const (
	maxResponse = 64 << 10 // bytes of the answer's header
	maxReason   = 300      // bytes of the answer's body that are quoted

	reasonTime = time.Second // how long to wait for these bytes: some servers send less than they announce
)

// Dial upgrades conn to a WebSocket, by a request for target. The result is a *[PromptConn] if
// socket, which reads and writes conn, is not nil. If Dial fails, the caller must close conn.
func Dial(ctx context.Context, conn net.Conn, socket Prompt, target *url.URL) (net.Conn, error) {
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // never fails
	key := base64.StdEncoding.EncodeToString(nonce[:])
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	first, err := ask(conn, target, key)
	if !stop() {
		return nil, fmt.Errorf("the server has not answered the request for WebSocket: %w", context.Cause(ctx))
	}
	if err != nil {
		return nil, err
	}
	return newConn(conn, socket, true, first), nil
}

// ask sends the request and reads the answer. It returns the bytes after the answer.
func ask(conn net.Conn, target *url.URL, key string) (first []byte, err error) {
	req := &http.Request{Method: http.MethodGet, URL: target, Host: target.Host, Header: make(http.Header)}
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
