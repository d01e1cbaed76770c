package mux

import (
	"encoding/binary"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

func number(b []byte, all ...int) []byte {
	for _, v := range all {
		b = binary.AppendUvarint(b, uint64(v))
	}
	return b
}

// frameOf is literal for any stream id.
func frameOf(k wire.Kind, id uint64, body ...byte) []byte {
	b := append(binary.AppendUvarint([]byte{0, 0, byte(k)}, id), body...)
	binary.LittleEndian.PutUint16(b, uint16(len(b)-2))
	return b
}

// TestABlockThatIsNotFinished checks that an unfinished block is kept only until blockTime. What it and
// other blocks and messages cost is in package attack.
func TestABlockThatIsNotFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer := met(t, Options{}, w)
		for range 20 {
			peer.write(literal(wire.KindPart, 1, fill(1000)...))
		}
		pass(blockTime - time.Second)
		if told := w.told(); len(told) > 0 {
			t.Fatalf("the session ends too early: %v", told)
		}
		pass(time.Minute)
		if told := w.told(); len(told) != 1 || !strings.Contains(told[0].Error(), "not finished") || !link.IsClosed(s.Ended()) {
			t.Errorf("the session ends with %v", told)
		}
	})
}

func TestABlockThatIsFinishedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		_, peer := met(t, Options{}, w)
		for id := uint64(1); id < 9; id += 2 {
			at := 5 // in the middle of the method
			if id == 1 {
				at = 0
			}
			peer.write(literal(wire.KindPart, id, opens[:at]...))
			pass(blockTime - time.Second)
			peer.write(literal(head, id, opens[at:]...))
			pass(time.Minute)
		}
		if told := w.told(); len(told) > 0 || len(w.streams) != 4 {
			t.Errorf("%d calls are accepted, the session ended with %v", len(w.streams), told)
		}
	})
}
