// Package grpc replaces grpc-go's package in its own tests. Server, ClientConn, the options
// and the client interceptors are those of grpc-go or of nearcall, depending on near.On. A
// generated file in the copy re-exports everything else. So only the imports of the tests
// change.
//
// An option that nearcall does not have does here what docs/migrate.md says to write instead.
package grpc

import "github.com/nearcall/nearcall"

// These are nearcall's. They forward calls of grpc-go to grpc-go.
var (
	SetSendCompressor          = nearcall.SetSendCompressor
	ClientSupportedCompressors = nearcall.ClientSupportedCompressors
)

// A PreparedMsg is nearcall's. SendMsg of grpc-go's streams does not support it.
type PreparedMsg = nearcall.PreparedMsg
