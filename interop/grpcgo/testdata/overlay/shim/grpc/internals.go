package grpc

import (
	"google.golang.org/grpc/internal"
	"google.golang.org/grpc/internal/envconfig"
	"google.golang.org/grpc/serviceconfig"
)

func init() {
	labelsMethods = func() bool {
		return envconfig.LabelServerGoroutines&envconfig.GoroutineLabelServerMethod != 0
	}
	parseServiceConfig = internal.ParseServiceConfig.(func(string) *serviceconfig.ParseResult)
}
