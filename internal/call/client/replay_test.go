package client

import (
	"bytes"
	"testing"

	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/message"
)

// What was kept does not change when more is, and small messages share memory.
func TestReplayMemoryKeepsMessagesApart(t *testing.T) {
	var r replayMemory
	var kept []message.Message
	var want [][]byte
	for i := range 300 {
		size := i
		if i%50 == 49 {
			size = 100_000
		}
		v := &testpb.Payload{Body: bytes.Repeat([]byte{byte(i)}, size)}
		b, err := proto.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		live := message.Live(v, codec.Proto())
		if err := r.encode(&live); err != nil {
			t.Fatal(err)
		}
		kept, want = append(kept, live), append(want, b)
		clear(v.Body)
	}
	for i := range kept {
		if got, err := kept[i].Append(nil); err != nil || !bytes.Equal(got, want[i]) {
			t.Errorf("message %d has %d bytes, want %d: %v", i, len(got), len(want[i]), err)
		}
	}
	small := message.Live(&testpb.Payload{Body: make([]byte, 20)}, codec.Proto())
	if n := testing.AllocsPerRun(1000, func() { m := small; _ = r.encode(&m) }); n > 1 {
		t.Errorf("%v allocations for a small message", n)
	}
}
