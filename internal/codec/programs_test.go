package codec

import (
	"reflect"
	"sync"
	"testing"
)

func TestProgramsOfManyTypes(t *testing.T) {
	var values []any
	for i := range 300 {
		values = append(values, reflect.New(reflect.ArrayOf(i, reflect.TypeFor[int]())).Interface())
	}
	var wg sync.WaitGroup
	got := make([][]*program, 4)
	for i := range got {
		wg.Go(func() {
			for _, v := range values {
				got[i] = append(got[i], programOf(v))
			}
		})
	}
	wg.Wait()
	seen := make(map[*program]bool)
	for i, v := range values {
		p := programOf(v)
		if p == nil || !p.foreign || seen[p] {
			t.Fatalf("type %d has the program %v", i, p)
		}
		seen[p] = true
		for _, g := range got {
			if g[i] != p {
				t.Errorf("type %d has had another program", i)
			}
		}
	}
}

func BenchmarkProgramOf(b *testing.B) {
	m := any(record())
	for b.Loop() {
		if programOf(m).foreign {
			b.Fatal("foreign")
		}
	}
}
