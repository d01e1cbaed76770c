package flat_test

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	flatbuffers "github.com/google/flatbuffers/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/flat"
	"github.com/nearcall/nearcall/flat/internal/store"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// targets returns a target of each kind; the empty one is in process.
func targets(t *testing.T) map[string]string {
	all := map[string]string{"in process": "", "tcp": "tcp:127.0.0.1:0"}
	if runtime.GOOS == "linux" {
		all["shm"] = "shm:" + filepath.Join(t.TempDir(), "s")
		all["unix"] = "unix:" + filepath.Join(t.TempDir(), "u")
	}
	return all
}

// Calls of each kind carry messages of all sizes, which do not change while others come.
func TestCallsCarryFlatBuffers(t *testing.T) {
	for name, target := range targets(t) {
		t.Run(name, func(t *testing.T) {
			client, _ := serve(t, pictures{}, target)
			var got []*store.Picture
			var want []string
			for _, pixels := range []int{0, 100, 5_000, 20_000, 300_000, 3 << 20} {
				p, err := client.Get(t.Context(), query("unary", pixels))
				if err != nil {
					t.Fatal(err)
				}
				got, want = append(got, p), append(want, text(read(picture("unary", pixels))))
				q, err := client.Put(t.Context(), picture("put", pixels))
				if err != nil || string(q.Name()) != "put" || int(q.Limit()) != pixels {
					t.Errorf("Put of %d pixels: %v", pixels, err)
				}
			}
			list, err := client.List(t.Context(), query("listed", 40))
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; ; i++ {
				p, err := list.Recv()
				if err == io.EOF && i == 40 {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				b := flatbuffers.NewBuilder(0)
				b.Finish(addPicture(b, "listed", i*1000, 1))
				got, want = append(got, p), append(want, text(read(b)))
			}
			for i, p := range got {
				if text(p) != want[i] {
					t.Errorf("message %d has changed", i)
				}
			}
		})
	}
}

// A received message can be sent on as it is, and a builder can be used again at once.
func TestAReceivedMessageIsSentOn(t *testing.T) {
	for name, target := range targets(t) {
		t.Run(name, func(t *testing.T) {
			client, _ := serve(t, pictures{}, target)
			s, err := client.Echo(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			b := flatbuffers.NewBuilder(0)
			for i := range needs.Rounds(60) {
				b.Reset()
				b.Finish(addPicture(b, strings.Repeat("x", i), i*i*100, 1))
				if err := s.Send(b); err != nil {
					t.Fatal(err)
				}
				want := text(read(b))
				b.Reset()
				b.Finish(addPicture(b, "another", i*i*100, 1)) // over the bytes that were sent
				p, err := s.Recv()
				if err != nil {
					t.Fatal(err)
				}
				if text(p) != want {
					t.Fatalf("message %d is another", i)
				}
				flat.Release(p)
			}
			if err := s.CloseSend(); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Recv(); err != io.EOF {
				t.Error(err)
			}
		})
	}
}

// Requests that are released while others are read do not change these.
func TestReleasedRequestsDoNotChangeOthers(t *testing.T) {
	for name, target := range targets(t) {
		t.Run(name, func(t *testing.T) {
			kept := map[int]*store.Picture{}
			want := map[int]string{}
			n := 0
			client, _ := serve(t, pictures{put: func(p *store.Picture) {
				if n%3 == 0 {
					kept[n], want[n] = p, text(p)
				} else {
					flat.Release(p)
				}
				n++
			}}, target)
			for i := range needs.Rounds(30) {
				if _, err := client.Put(t.Context(), picture(strings.Repeat("n", i+1), i*20_000)); err != nil {
					t.Fatal(err)
				}
			}
			for i, p := range kept {
				if text(p) != want[i] || text(p) != text(read(picture(strings.Repeat("n", i+1), i*20_000))) {
					t.Errorf("request %d has changed", i)
				}
			}
		})
	}
}

// counted is the memory of a message, which counts how often it was freed.
type counted struct{ freed int }

func (c *counted) Get(n int) *[]byte { b := make([]byte, n); return &b }
func (c *counted) Put(*[]byte)       { c.freed++ }

// receive decodes the message b into m, in memory that pool counts.
func receive(t *testing.T, pool *counted, b []byte, m flatbuffers.FlatBuffer) {
	t.Helper()
	b = slices.Clone(b)
	data := mem.NewBuffer(&b, pool)
	if err := codec.Unmarshal(mem.BufferSlice{data}, m); err != nil {
		t.Fatal(err)
	}
	data.Free()
}

func TestTheMemoryOfALargeMessageIsFreedWhenItIsReleased(t *testing.T) {
	var pool counted
	large, small := picture("large", 100_000).FinishedBytes(), picture("small", 3_000).FinishedBytes()
	var m store.Picture
	receive(t, &pool, small, &m)
	if pool.freed != 1 {
		t.Error("the memory of a small message, which is copied, is not freed at once")
	}
	receive(t, &pool, large, &m)
	if pool.freed != 1 || text(&m) != text(store.GetRootAsPicture(large, 0)) {
		t.Error("the memory of a large message is freed before it is released")
	}
	flat.Release(&m)
	if pool.freed != 2 {
		t.Error("the memory is not freed when the message is released")
	}
	if len(m.Table().Bytes) != 0 {
		t.Error("the message can still be read")
	}
	flat.Release(&m)
	flat.Release(new(store.Picture))
	flat.Release((*store.Picture)(nil))
	flat.Release(nil)
	if pool.freed != 2 {
		t.Error("the memory is freed again")
	}
}

// The memory of a message that is never released is left to the collector: tables within it may be
// used for longer than the message.
func TestATableOutlivesTheMessageThatItIsIn(t *testing.T) {
	var pool counted
	part := func() *store.Picture {
		var m store.Picture
		receive(t, &pool, picture("whole", 100_000).FinishedBytes(), &m)
		var part store.Picture
		if !m.Parts(&part, 0) {
			t.Fatal("there is no part")
		}
		return &part
	}()
	want := text(part)
	for range 5 {
		runtime.GC()
	}
	if pool.freed != 0 || text(part) != want {
		t.Error("the memory was freed by the collector")
	}
}

func TestWhatCannotBeSentOrReceivedIsExplained(t *testing.T) {
	whole := read(picture("whole", 1))
	var part store.Picture
	whole.Parts(&part, 0)
	for words, v := range map[string]any{
		"not finished":             flatbuffers.NewBuilder(0),
		"call Finish":              (*flatbuffers.Builder)(nil),
		"is a part of":             &part,
		"is nil":                   (*store.Picture)(nil),
		"it was released":          new(store.Picture),
		"<nil> is not a Flat":      nil,
		"string is not a FlatBuff": "text",
	} {
		if _, err := codec.Marshal(v); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("to send %T fails with %v, want %q", v, err, words)
		}
	}
	data := mem.BufferSlice{mem.SliceBuffer(picture("x", 1).FinishedBytes())}
	for words, v := range map[string]any{
		"not a table":                  new(string),
		"have no table flat_test.Item": new(Item),
	} {
		if err := codec.Unmarshal(data, v); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("to receive a %T fails with %v, want %q", v, err, words)
		}
	}
	two := flat.NewCodec(store.Schema, store.Schema)
	if err := two.Unmarshal(data, new(store.Picture)); err == nil || !strings.Contains(err.Error(), "can be the table") {
		t.Errorf("a type of two schemas: %v", err)
	}
	for _, b := range [][]byte{nil, {1, 2, 3}, []byte("    BFBS"), slices.Concat(store.Schema[:60], make([]byte, 60)), store.Schema[:len(store.Schema)/2]} {
		func() {
			defer func() {
				if err, _ := recover().(error); err == nil || !strings.Contains(err.Error(), "not a compiled schema") {
					t.Errorf("%d bytes are a schema: %v", len(b), err)
				}
			}()
			flat.NewCodec(b)
		}()
	}
}

// Item is not in the schema.
type Item struct{ store.Picture }

// rawCodec sends bytes as they are, like a peer that is broken.
type rawCodec struct{}

func (rawCodec) Name() string { return flat.Name }
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (rawCodec) Unmarshal(mem.BufferSlice, any) error { return errors.New("not expected") }

func TestABrokenMessageReachesNoHandler(t *testing.T) {
	for name, target := range targets(t) {
		t.Run(name, func(t *testing.T) {
			_, conn := serve(t, pictures{put: func(*store.Picture) { t.Error("the handler runs") }}, target)
			good := picture("good", 50_000).FinishedBytes()
			for _, b := range [][]byte{{}, {1}, make([]byte, 100), good[:len(good)-1000], good[4:]} {
				err := conn.Invoke(context.Background(), "/store.Pictures/Put", b, new(store.Query), grpc.ForceCodecV2(rawCodec{}))
				if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "not a message of store.Picture") {
					t.Errorf("%d bytes: %v", len(b), err)
				}
			}
		})
	}
}
