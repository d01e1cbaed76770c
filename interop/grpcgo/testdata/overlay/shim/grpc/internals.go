package grpc

import (
	g "google.golang.org/grpc"
	"google.golang.org/grpc/internal"
	"google.golang.org/grpc/internal/envconfig"
	"google.golang.org/grpc/internal/grpcsync"
	"google.golang.org/grpc/serviceconfig"
)

func init() {
	labelsMethods = func() bool {
		return envconfig.LabelServerGoroutines&envconfig.GoroutineLabelServerMethod != 0
	}
	parseServiceConfig = internal.ParseServiceConfig.(func(string) *serviceconfig.ParseResult)
}

// Hook returns a function of grpc-go's package internal as one that takes a *ClientConn.
func Hook(f any) any {
	switch f := f.(type) {
	case func(*g.ClientConn):
		return func(c *ClientConn) { f(c.real()) }
	case func(*g.ClientConn, grpcsync.Subscriber) func():
		return func(c *ClientConn, s grpcsync.Subscriber) func() { return f(c.real(), s) }
	}
	return f
}
