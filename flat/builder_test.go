package flat_test

import (
	"context"
	"io"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	flatbuffers "github.com/google/flatbuffers/go"
	"google.golang.org/grpc"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/flat"
	"github.com/nearcall/nearcall/flat/internal/store"
	"github.com/nearcall/nearcall/metrics"
)

func TestABuilderOwnsItsMemoryUntilItWasSent(t *testing.T) {
	for name, size := range map[string]int{"of a small message": 400, "of a large one": 200_000} {
		t.Run(name, func(t *testing.T) {
			b := flat.NewReply(t.Context(), size+2048)
			if _, err := codec.Marshal(b); err == nil {
				t.Error("a builder is sent that is not finished")
			}
			b.Finish(addPicture(b, "built", size, 0))
			built := b.FinishedBytes()
			data, err := codec.Marshal(b)
			if err != nil {
				t.Fatal(err)
			}
			if &data[0].ReadOnlyData()[0] != &built[0] {
				t.Error("the message is not sent from where it was built")
			}
			want := flatbuffers.NewBuilder(0)
			want.Finish(addPicture(want, "built", size, 0))
			if got := store.GetRootAsPicture(data.Materialize(), 0); text(got) != text(read(want)) {
				t.Error("the message is another")
			}
			if size > 2048 && len(b.Bytes) != 0 {
				t.Error("the builder still has the memory")
			}
			b.Reset()
			b.Finish(addPicture(b, "again", 10, 0)) // as with one of package flatbuffers
			again, err := codec.Marshal(b)
			if err != nil || string(store.GetRootAsPicture(again.Materialize(), 0).Name()) != "again" {
				t.Errorf("the builder cannot be used again: %v", err)
			}
			data.Free()
		})
	}
}

func TestABuilderGrowsOutOfItsMemory(t *testing.T) {
	b := flat.NewReply(t.Context(), 20_000)
	b.Finish(addPicture(b, "grown", 100_000, 2))
	data, err := codec.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	if text(store.GetRootAsPicture(data.Materialize(), 0)) != text(read(picture("grown", 100_000))) {
		t.Error("the message is another")
	}
}

// building is a service whose messages are built in the memory of the connection.
type building struct{ pictures }

func (building) Get(ctx context.Context, q *store.Query) (*flatbuffers.Builder, error) {
	b := flat.NewReply(ctx, int(q.Limit())+2048)
	b.Finish(addPicture(b, string(q.Name()), int(q.Limit()), 2))
	return b, nil
}

func (building) List(q *store.Query, s store.Pictures_ListServer) error {
	for i := range int(q.Limit()) {
		b := flat.NewReply(s.Context(), i*20_000+2048)
		b.Finish(addPicture(b, string(q.Name()), i*20_000, 1))
		if err := s.Send(b); err != nil {
			return err
		}
	}
	return nil
}

func TestMessagesAreBuiltInTheConnectionsMemory(t *testing.T) {
	for name, target := range targets(t) {
		t.Run(name, func(t *testing.T) {
			client, conn := serve(t, building{}, target)
			if _, err := client.Get(t.Context(), query("first", 1)); err != nil { // connects
				t.Fatal(err)
			}
			for round := range 3 {
				for _, pixels := range []int{0, 5_000, 100_000, 1 << 20} {
					b := flat.NewRequest(conn, pixels+2048)
					b.Finish(addPicture(b, "put", pixels, 2))
					q, err := client.Put(t.Context(), b)
					if err != nil || int(q.Limit()) != pixels {
						t.Fatalf("round %d, Put of %d pixels: %v", round, pixels, err)
					}
					p, err := client.Get(t.Context(), query("got", pixels))
					if err != nil {
						t.Fatal(err)
					}
					if text(p) != text(read(picture("got", pixels))) {
						t.Errorf("round %d: the message of %d pixels is another", round, pixels)
					}
					flat.Release(p)
				}
			}
			list, err := client.List(t.Context(), query("listed", 12))
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; ; i++ {
				p, err := list.Recv()
				if err == io.EOF && i == 12 {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				b := flatbuffers.NewBuilder(0)
				b.Finish(addPicture(b, "listed", i*20_000, 1))
				if text(p) != text(read(b)) {
					t.Errorf("message %d is another", i)
				}
			}
		})
	}
}

// awaitNoMemory waits until no shared memory is in use.
func awaitNoMemory(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); metrics.Read().GetSharedMemory().GetBytes() > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes of shared memory are left", metrics.Read().GetSharedMemory().GetBytes())
		}
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
}

// A builder can outlive its connection, and what it had of the connection's memory comes back.
func TestABuilderOutlivesItsConnection(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("shared memory needs Linux")
	}
	target := "shm:" + filepath.Join(t.TempDir(), "s")
	awaitNoMemory(t) // of other tests, whose connections may still be closing
	srv := nearcall.NewServer()
	store.RegisterPicturesServer(srv, building{})
	lis, err := nearcall.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = srv.Serve(lis) }()
	conn, err := nearcall.NewClient(target, nearcall.WithDefaultCallOptions(grpc.ForceCodecV2(codec)))
	if err != nil {
		t.Fatal(err)
	}
	client := store.NewPicturesClient(conn)
	if _, err := client.Get(t.Context(), query("first", 1)); err != nil {
		t.Fatal(err)
	}
	used := metrics.Read().GetSharedMemory().GetBytes()
	b := flat.NewRequest(conn, 1<<20)
	_ = flat.NewRequest(conn, 1<<20) // is never sent
	if n := metrics.Read().GetSharedMemory().GetBytes() - used; n < 1<<20 {
		t.Fatalf("the builder has %d bytes of shared memory", n)
	}
	_ = conn.Close()
	srv.Stop()
	b.Finish(addPicture(b, "late", 500_000, 2))
	if text(read(b)) != text(read(picture("late", 500_000))) {
		t.Error("the message is another")
	}
	if _, err := client.Put(t.Context(), b); err == nil {
		t.Error("a closed connection has sent a message")
	}
	_, _ = codec.Marshal(b) // as far as it is not sent, this takes its memory; nobody frees it
	awaitNoMemory(t)
	if b := flat.NewRequest(conn, 1<<20); len(b.Bytes) != 1<<20 {
		t.Error("a builder for a closed connection has no memory")
	}
}

// In process nothing is copied if both sides have promised not to write to messages.
func TestSharedMessagesAreNotCopied(t *testing.T) {
	for _, shared := range []bool{true, false} {
		var seen *store.Picture
		srv := nearcall.NewServer(nearcall.ImmutableMessages())
		store.RegisterPicturesServer(srv, pictures{put: func(p *store.Picture) { seen = p }, keeps: true})
		opts := []nearcall.DialOption{nearcall.WithDefaultCallOptions(grpc.ForceCodecV2(codec))}
		if shared {
			opts = append(opts, nearcall.WithImmutableMessages())
		}
		client := store.NewPicturesClient(srv.Client(opts...))
		same := func(p *store.Picture, b []byte) bool { return &p.Table().Bytes[0] == &b[0] }

		b := picture("shared", 50_000)
		if _, err := client.Put(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		if same(seen, b.FinishedBytes()) != shared {
			t.Errorf("shared: %v, a request is where it was built: %v", shared, !shared)
		}
		s, err := client.Echo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			b = picture("streamed", 50_000)
			if err := s.Send(b); err != nil {
				t.Fatal(err)
			}
			reply, err := s.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if same(seen, b.FinishedBytes()) != shared || same(reply, b.FinishedBytes()) != shared {
				t.Errorf("shared: %v, a message of a stream is where it was built: %v, %v", shared, same(seen, b.FinishedBytes()), same(reply, b.FinishedBytes()))
			}
			if text(reply) != text(read(picture("streamed", 50_000))) {
				t.Error("the message is another")
			}
		}
		srv.Stop()
	}
}
