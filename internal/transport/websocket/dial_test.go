package websocket

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// A server that refuses may leave its answer unfinished, and the connection open.
func TestARefusalDoesNotWaitForAllOfItsText(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	go func() {
		_, _ = http.ReadRequest(bufio.NewReader(far))
		_, _ = io.WriteString(far, "HTTP/1.1 403 Forbidden\r\nContent-Length: 100\r\n\r\nnot you")
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := Dial(ctx, near, nil, &url.URL{Scheme: "ws", Host: "x", Path: "/"})
	if err == nil || !strings.Contains(err.Error(), `403 Forbidden: "not you"`) {
		t.Error(err)
	}
	if ctx.Err() != nil {
		t.Error("it waits for the context's end")
	}
}
