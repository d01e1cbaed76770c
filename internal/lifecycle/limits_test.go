package lifecycle

import (
	"testing"
	"time"

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

// Whenever the last packet arrives, the peer is lost after the limit, or at most one check earlier,
// and it gets a probe in time to answer.
func TestASilentPeerIsLostInTime(t *testing.T) {
	for _, w := range []Silence{
		{Probe: 10 * time.Second, Limit: 30 * time.Second},
		{Probe: 20 * time.Second, Limit: 20*time.Second + time.Millisecond},
		{Limit: 12 * time.Second},
	} {
		for lastPacket := time.Duration(0); lastPacket < time.Minute; lastPacket += time.Second / 3 {
			w := w
			var now, probed time.Duration
			for received := uint64(1); ; {
				if now <= lastPacket {
					received++ // one between any two checks
				}
				next, probe := w.Check(received)
				if probe {
					probed = now
				}
				if next <= 0 {
					break
				}
				if next > w.Every() {
					t.Fatalf("%+v: the next check is after %v", w, next)
				}
				now += next
			}
			if silent := now - lastPacket; silent > w.Limit || silent < w.Limit-2*w.Every() {
				t.Errorf("probe %v, limit %v: the peer is lost after %v of silence", w.Probe, w.Limit, silent)
			}
			if w.Probe == 0 != (probed == 0) || probed > 0 && now-probed != w.Limit-w.Probe {
				t.Errorf("probe %v, limit %v: a packet was sent %v before the peer was lost", w.Probe, w.Limit, now-probed)
			}
		}
	}
}

// Packets that arrive end the silence, also after a packet was sent for it.
func TestAPeerThatAnswersIsNotLost(t *testing.T) {
	w := Silence{Probe: 10 * time.Second, Limit: 30 * time.Second}
	var received uint64
	probes := 0
	for range 1000 {
		next, probe := w.Check(received)
		if next <= 0 {
			t.Fatal("the peer is lost")
		}
		if probe {
			probes++
			received++
		}
	}
	if probes < 200 {
		t.Errorf("%d packets were sent", probes)
	}
}
