package inproc

import (
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestStreams(t *testing.T) {
	transporttest.Suite{
		Connect: func(_ *testing.T, deadline time.Time) (caller, callee link.Stream) {
			p := newPipe(0, 0)
			p.deadline = deadline
			return &p.caller, &p.callee
		},
		Window: defaultWindow,
		Codec:  codec.Proto(),
	}.Run(t)
}
