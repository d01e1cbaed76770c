package balance

import (
	"math"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/options"
)

// The timer looks for calls before grpc-go's timeout passes, and not again and again.
func TestAnyIdleTimeout(t *testing.T) {
	for _, timeout := range []time.Duration{1, time.Second, math.MaxInt64 - 1, math.MaxInt64} {
		c := &Channel{cfg: Config{Options: &options.Client{IdleAfter: timeout}}}
		if d, own := c.lookAfter(), c.idleTimeout(); d < time.Millisecond || own < timeout || d >= own {
			t.Errorf("%v: it looks after %v, and grpc-go's timeout is %v", timeout, d, own)
		}
	}
	for _, timeout := range []time.Duration{math.MinInt64, -1, 0} {
		if d := (&Channel{cfg: Config{Options: &options.Client{IdleAfter: timeout}}}).idleTimeout(); d != 0 {
			t.Errorf("%v is none for us, and %v for grpc-go", timeout, d)
		}
	}
}
