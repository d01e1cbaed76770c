package nearconnect

import (
	"context"
	"slices"
	"strings"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc/metadata"
)

// withHeader returns ctx with h in its outgoing metadata, after what the user has put there.
func withHeader(ctx context.Context, h *connect.Header) (context.Context, error) {
	if h.Len() == 0 {
		return ctx, nil
	}
	md, err := toMetadata(h)
	if err != nil {
		return ctx, err
	}
	if own, ok := metadata.FromOutgoingContext(ctx); ok {
		md = metadata.Join(own, md)
	}
	return metadata.NewOutgoingContext(ctx, md), nil
}

const binarySuffix = "-bin"

// toMetadata returns h as gRPC's metadata, in which binary values are not encoded.
func toMetadata(h *connect.Header) (metadata.MD, error) {
	md := make(metadata.MD, h.Len())
	for key, values := range h.All() {
		key = strings.ToLower(key)
		if !strings.HasSuffix(key, binarySuffix) {
			md[key] = values
			continue
		}
		for _, value := range values {
			for part := range strings.SplitSeq(value, ",") {
				b, err := connect.DecodeBinaryHeader(strings.TrimSpace(part))
				if err != nil {
					return nil, connect.Errorf(connect.CodeInternal, "the value of %s is not base64; use connect.EncodeBinaryHeader", key).WithCause(err)
				}
				md[key] = append(md[key], string(b))
			}
		}
	}
	return md, nil
}

// fromMetadata sets the keys of md in h, except those of gRPC's protocol.
func fromMetadata(h *connect.Header, md metadata.MD) {
	for key, values := range md {
		switch {
		case ofProtocol(key):
		case strings.HasSuffix(key, binarySuffix):
			encoded := make([]string, len(values))
			for i, v := range values {
				encoded[i] = connect.EncodeBinaryHeader([]byte(v))
			}
			h.SetValues(key, encoded)
		default:
			h.SetValues(key, slices.Clone(values))
		}
	}
}

// ofProtocol reports whether gRPC's protocol has put key into the metadata.
func ofProtocol(key string) bool {
	switch key {
	case "content-type", "te", "grpc-accept-encoding", "grpc-encoding", "grpc-timeout", "grpc-status", "grpc-message", "grpc-status-details-bin":
		return true
	}
	return strings.HasPrefix(key, ":")
}
