package websocket

import (
	"context"
	"encoding/binary"
	"net/http"
	"slices"
)

// Keep returns a function that makes copies of r, the request that has opened a WebSocket,
// without its body, its context and the header fields named in without. The function holds the
// header in one text: a map of 2,000 short fields takes twenty times as much memory, and a
// WebSocket may stay open for days.
func Keep(r *http.Request, without ...string) func() *http.Request {
	kept := r.WithContext(context.Background()) // r's own context ends, and would keep its server in memory
	kept.Body, kept.GetBody, kept.Header = http.NoBody, nil, nil
	var b []byte
	for name, values := range r.Header {
		if slices.Contains(without, name) {
			continue
		}
		for _, v := range values {
			b = appendText(appendText(b, name), v)
		}
	}
	packed := string(b)
	return func() *http.Request {
		r, url := *kept, *kept.URL
		r.URL, r.Header = &url, make(http.Header)
		for name, v, rest := "", "", packed; rest != ""; {
			name, rest = cutText(rest)
			v, rest = cutText(rest)
			r.Header[name] = append(r.Header[name], v)
		}
		return &r
	}
}

// appendText appends the length of a text, and the text.
func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// cutText is the inverse of appendText.
func cutText(b string) (text, rest string) {
	n, size := binary.Uvarint([]byte(b[:min(len(b), binary.MaxVarintLen64)]))
	b = b[size:]
	return b[:n], b[n:]
}
