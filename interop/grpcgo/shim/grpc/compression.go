package grpc

import "github.com/nearcall/nearcall"

// These are nearcall's. They forward calls of grpc-go to grpc-go.
var (
	SetSendCompressor          = nearcall.SetSendCompressor
	ClientSupportedCompressors = nearcall.ClientSupportedCompressors
)

// A PreparedMsg is nearcall's. SendMsg of grpc-go's streams does not support it.
type PreparedMsg = nearcall.PreparedMsg
