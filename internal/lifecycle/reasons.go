package lifecycle

import "errors"

// Why a connection ends, or makes no more calls, by its own life. A transport adds its reasons: that the
// connection was lost, that the peer broke the protocol, and what the peer says in its last frame.
var (
	ErrIdle    = errors.New("the connection was idle for MaxConnectionIdle")
	ErrOld     = errors.New("the connection reached MaxConnectionAge")
	ErrDead    = errors.New("keepalive: the peer did not answer a ping in time")
	ErrRetired = errors.New("the connection is retired") // by its owner, for another one

	ErrServerStops = errors.New("the server is going away")
	ErrPeerStops   = errors.New("the peer is going away")         // it is the server
	ErrClientStops = errors.New("the client takes no more calls") // and keeps the connection
)
