package inproc

import (
	"testing"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/leak"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/transport/transporttest"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestStreams(t *testing.T) {
	transporttest.Suite{
		Connect: func(*testing.T) (caller, callee link.Stream) {
			p := newPipe(0, 0)
			return &p.caller, &p.callee
		},
		Window: defaultWindow,
		Codec:  codec.Proto(),
	}.Run(t)
}
