package grpc

import "github.com/nearcall/nearcall"

// Nearcall's own, which pass calls of grpc-go on to grpc-go's.
var (
	SetSendCompressor          = nearcall.SetSendCompressor
	ClientSupportedCompressors = nearcall.ClientSupportedCompressors
)

// A PreparedMsg is nearcall's: streams of grpc-go's servers do not take it in SendMsg.
type PreparedMsg = nearcall.PreparedMsg
