package lifecycle

import (
	"testing"

	"github.com/nearcall/nearcall/internal/wire"
)

func TestAPeerDrainsTwiceAtMost(t *testing.T) {
	for name, drains := range map[string][]uint64{
		"one":                        {wire.NoLast},
		"one that names a call":      {3},
		"an announcement and a call": {wire.NoLast, 3},
		"two calls":                  {5, 3},
	} {
		var d DrainLimit
		for i, last := range drains {
			if d.Exceeded(last) || d.Drains != i+1 {
				t.Errorf("%s: DRAIN %d is one too many", name, i+1)
			}
		}
		if len(drains) == 1 {
			_ = d.Exceeded(1)
		}
		if !d.Exceeded(0) {
			t.Errorf("%s: the third DRAIN is not one too many", name)
		}
	}
	for name, drains := range map[string][2]uint64{"the same": {3, 3}, "a later call": {3, 4}, "two announcements": {wire.NoLast, wire.NoLast}} {
		var d DrainLimit
		if d.Exceeded(drains[0]) || !d.Exceeded(drains[1]) {
			t.Errorf("%s: the second DRAIN says nothing new", name)
		}
	}
}
