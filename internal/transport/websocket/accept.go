package websocket

import (
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
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
