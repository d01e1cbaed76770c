package http1

import (
	"encoding/base64"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/internal/link"
)

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
	for key, values := range end.Trailer {
		if reserved(key) || !link.ValidKey(key) {
			continue
		}
		for _, v := range values {
			if v = encodeValue(key, v); link.ValidText(v) { // a line break would begin another entry
				b = fmt.Appendf(b, "%s: %s\r\n", key, v)
			}
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
