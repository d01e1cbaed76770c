package test

import (
	"testing"

	"google.golang.org/grpc/grpclog"

	"github.com/nearcall/nearcall/internal/testing/leak"
)

func TestMain(m *testing.M) {
	grpclog.SetLoggerV2(logs) // before anything logs, as grpclog demands
	leak.Main(m)
}
