package web

import (
	"encoding/base64"
	"fmt"
	"iter"
	"net/http"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/internal/link"
)

// ours holds the headers that belong to HTTP and to the protocols. They are not metadata in either
// direction: in a response, they would let a handler break the framing.
var ours = map[string]bool{
	"accept-encoding": true, "connection": true, "content-encoding": true, "content-length": true, "content-type": true,
	"expect": true, "host": true, "http2-settings": true, "keep-alive": true, "proxy-connection": true, "te": true,
	"trailer": true, "transfer-encoding": true, "upgrade": true, "user-agent": true,
	"grpc-accept-encoding": true, "grpc-encoding": true, "grpc-message": true, "grpc-message-type": true, "grpc-status": true, "grpc-timeout": true,
}

func reserved(key string) bool { return ours[key] || strings.HasPrefix(key, "connect-") }

// metadataOf returns the metadata in the header of a request.
func metadataOf(h http.Header) (metadata.MD, error) {
	md := make(metadata.MD, len(h))
	for name, values := range h {
		key := strings.ToLower(name)
		if reserved(key) || !link.ValidKey(key) {
			continue
		}
		if !strings.HasSuffix(key, "-bin") {
			md[key] = values
			continue
		}
		for _, joined := range values {
			for v := range strings.SplitSeq(joined, ",") {
				b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(v), "="))
				if err != nil {
					return nil, fmt.Errorf("the header %s is not base64: %v", key, err)
				}
				md[key] = append(md[key], string(b))
			}
		}
	}
	return md, nil
}

// encodedMetadata returns the entries of md as they are sent.
func encodedMetadata(md metadata.MD) iter.Seq2[string, string] {
	return func(yield func(key, value string) bool) {
		for key, values := range md {
			if reserved(key) || !link.ValidKey(key) {
				continue
			}
			for _, v := range values {
				if strings.HasSuffix(key, "-bin") {
					v = base64.RawStdEncoding.EncodeToString([]byte(v))
				}
				if !yield(key, v) {
					return
				}
			}
		}
	}
}

// addMetadata adds md to the header h of a response. It puts prefix before each key.
func addMetadata(h http.Header, prefix string, md metadata.MD) {
	for key, v := range encodedMetadata(md) {
		h.Add(prefix+key, v)
	}
}

// encodeTrailer returns the trailer of a gRPC-Web response: lines as in an HTTP/1 header.
func encodeTrailer(end *link.End) []byte {
	var b []byte
	b = fmt.Appendf(b, "grpc-status: %d\r\n", end.Status.Code())
	if msg := end.Status.Message(); msg != "" {
		b = append(appendPercent(append(b, "grpc-message: "...), msg), "\r\n"...)
	}
	if p := end.Status.Proto(); len(p.GetDetails()) > 0 {
		if details, err := proto.Marshal(p); err == nil {
			b = fmt.Appendf(b, "%s: %s\r\n", link.DetailsKey, base64.RawStdEncoding.EncodeToString(details))
		}
	}
	for key, v := range encodedMetadata(end.Trailer) {
		if link.ValidText(v) { // a line break would begin another entry
			b = fmt.Appendf(b, "%s: %s\r\n", key, v)
		}
	}
	return b
}

// appendPercent appends a status message in gRPC's percent-encoding.
func appendPercent(b []byte, msg string) []byte {
	for i := range len(msg) {
		if c := msg[i]; c >= ' ' && c <= '~' && c != '%' {
			b = append(b, c)
		} else {
			b = fmt.Appendf(b, "%%%02X", c)
		}
	}
	return b
}
