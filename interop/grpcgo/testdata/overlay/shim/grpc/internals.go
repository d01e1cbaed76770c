package grpc

import (
	"google.golang.org/grpc/internal"
	"google.golang.org/grpc/serviceconfig"
)

func init() {
	parseServiceConfig = internal.ParseServiceConfig.(func(string) *serviceconfig.ParseResult)
}
