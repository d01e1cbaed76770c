package largecopy

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"
)

// sizes are around the steps.
var sizes = []int{0, 1, 1000, step - 1, step, step + 1, 2*step - 1, 2 * step, 5*step + 17}

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = r.Read(b)
	return b
}

func TestCopiesAreThoseOfTheLanguage(t *testing.T) {
	for _, n := range sizes {
		src := random(n)
		for _, room := range sizes {
			got, want := make([]byte, room), make([]byte, room)
			if a, b := Copy(got, src), copy(want, src); a != b || !bytes.Equal(got, want) {
				t.Errorf("Copy of %d bytes to %d: %d, want %d", n, room, a, b)
			}
			for _, have := range sizes {
				b := make([]byte, have, have+room)
				got, want := Append(b, src), append(bytes.Clone(b), src...)
				inPlace := len(got) > 0 && cap(b) > 0 && &got[0] == &b[:1][0]
				if !bytes.Equal(got, want) || len(got) > 0 && inPlace != (n <= room) {
					t.Errorf("Append of %d bytes to %d with room for %d", n, have, room)
				}
				if !bytes.Equal(AppendString(b, string(src)), want) {
					t.Errorf("AppendString of %d bytes to %d with room for %d", n, have, room)
				}
			}
		}
		if c := Clone(src); c == nil || !bytes.Equal(c, src) || n > 0 && &c[0] == &src[0] {
			t.Errorf("Clone of %d bytes", n)
		}
	}
}

// A goroutine that copies for long does not hold up the collector.
func BenchmarkCollectionBesideCopies(b *testing.B) {
	for name, c := range map[string]func(dst, src []byte) int{"bulk": Copy, "copy": func(dst, src []byte) int { return copy(dst, src) }} {
		b.Run(name, func(b *testing.B) {
			stop, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				dst, src := make([]byte, 16<<20), make([]byte, 16<<20)
				for {
					select {
					case <-stop:
						return
					default:
						c(dst, src)
					}
				}
			}()
			for b.Loop() {
				runtime.GC()
			}
			close(stop)
			<-done
		})
	}
}
