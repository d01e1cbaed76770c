package targets

import (
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/resolver/dns"

	"github.com/nearcall/nearcall/internal/testing/leak"
)

func TestMain(m *testing.M) {
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	dns.SetMinResolutionInterval(10 * time.Millisecond)
	leak.Main(m)
}
