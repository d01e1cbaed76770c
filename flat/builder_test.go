package flat_test

import (
	"context"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	flatbuffers "github.com/google/flatbuffers/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/flat"
	"github.com/nearcall/nearcall/flat/internal/store"
	"github.com/nearcall/nearcall/shmstats"
)

// dirty is a pool whose memory is not zero, and which counts what is out.
type dirty struct {
	out  int
	last []byte // that Get has returned
}

func (d *dirty) Get(n int) *[]byte {
	d.out++
	b := []byte(strings.Repeat("\xff", n))
	d.last = b
	return &b
}

func (d *dirty) Put(b *[]byte) {
	d.out--
	clear(*b)
}

func TestABuildersMemoryIsThePoolsUntilItWasSent(t *testing.T) {
	for name, size := range map[string]int{"of a small message": 400, "of a large one": 200_000} {
		t.Run(name, func(t *testing.T) {
			var pool dirty
			b := flat.NewBuilder(&pool, size+2048)
			if _, err := codec.Marshal(b); err == nil {
				t.Error("a builder is sent that is not finished")
			}
			b.Finish(addPicture(b, "built", size, 0))
			data, err := codec.Marshal(b)
			if err != nil {
				t.Fatal(err)
			}
			if size > 1024 && (pool.out != 1 || &data[0].ReadOnlyData()[0] != &pool.last[cap(pool.last)-data.Len()]) {
				t.Error("the message is not sent from where it was built")
			}
			want := flatbuffers.NewBuilder(0)
			want.Finish(addPicture(want, "built", size, 0))
			if got := store.GetRootAsPicture(data.Materialize(), 0); text(got) != text(read(want)) {
				t.Error("the message is another")
			}
			if len(b.Bytes) != 0 {
				t.Error("the builder still has the memory")
			}
			b.Finish(addPicture(b, "again", 10, 0)) // as with one of package flatbuffers
			again, err := codec.Marshal(b)
			if err != nil || string(store.GetRootAsPicture(again.Materialize(), 0).Name()) != "again" {
				t.Errorf("the builder cannot be used again: %v", err)
			}
			data.Free()
			if pool.out != 0 {
				t.Errorf("%d pieces of memory are out", pool.out)
			}
		})
	}
}

func TestABuilderGrowsOutOfItsPool(t *testing.T) {
	var pool dirty
	b := flat.NewBuilder(&pool, 4000)
	b.Finish(addPicture(b, "grown", 100_000, 2))
	data, err := codec.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	if pool.out != 0 {
		t.Error("the memory that was too small is not given back")
	}
	if text(store.GetRootAsPicture(data.Materialize(), 0)) != text(read(picture("grown", 100_000))) {
		t.Error("the message is another")
	}
}

func TestABuilderThatIsNotSentLosesItsMemory(t *testing.T) {
	freed := make(chan struct{}, 1)
	b := flat.NewBuilder(notifying{freed}, 100_000)
	b.Finish(addPicture(b, "x", 1000, 1))
	runtime.GC()
	select {
	case <-freed:
		t.Error("the memory of a builder in use is given back")
	default:
	}
	runtime.KeepAlive(b)
	for {
		runtime.GC()
		select {
		case <-freed:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

type notifying struct{ freed chan struct{} }

func (notifying) Get(n int) *[]byte { b := make([]byte, n); return &b }
func (n notifying) Put(*[]byte)     { n.freed <- struct{}{} }

// building is a service whose messages are built in the memory of the connection.
type building struct{ pictures }

func (building) Get(ctx context.Context, q *store.Query) (*flatbuffers.Builder, error) {
	b := flat.NewBuilder(nearcall.BufferPool(ctx), int(q.Limit())+2048)
	b.Finish(addPicture(b, string(q.Name()), int(q.Limit()), 2))
	return b, nil
}

func (building) List(q *store.Query, s store.Pictures_ListServer) error {
	for i := range int(q.Limit()) {
		b := flat.NewBuilder(nearcall.BufferPool(s.Context()), i*20_000+2048)
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
			client, conn := serve(t, building{}, target, nearcall.ChainUnaryInterceptor(flat.ReleaseRequests()))
			if _, err := client.Get(t.Context(), query("first", 1)); err != nil { // connects
				t.Fatal(err)
			}
			for round := range 3 {
				for _, pixels := range []int{0, 5_000, 100_000, 1 << 20} {
					b := flat.NewBuilder(conn.BufferPool(), pixels+2048)
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

// A builder can outlive its connection, and what it had of the connection's memory comes back.
func TestABuilderOutlivesItsConnection(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("shared memory needs Linux")
	}
	target := "shm:" + filepath.Join(t.TempDir(), "s")
	before := shmstats.Read().Bytes
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
	pool := conn.BufferPool()
	used := shmstats.Read().Bytes
	b := flat.NewBuilder(pool, 1<<20)
	if n := shmstats.Read().Bytes - used; n < 1<<20 {
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
	for deadline := time.Now().Add(10 * time.Second); shmstats.Read().Bytes > before; {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes of shared memory are left", shmstats.Read().Bytes-before)
		}
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	if c := pool.Get(1 << 20); len(*c) != 1<<20 {
		t.Error("the pool of a closed connection has no memory")
	}
}

// In process nothing is copied if both sides have promised not to write to messages.
func TestSharedMessagesAreNotCopied(t *testing.T) {
	for _, shared := range []bool{true, false} {
		var seen *store.Picture
		srv := nearcall.NewServer(nearcall.ImmutableMessages())
		store.RegisterPicturesServer(srv, pictures{put: func(p *store.Picture) { seen = p }})
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

// With shared messages the memory of a pool goes back to it when both sides are done.
func TestSharedMemoryOfAPoolIsFreedByTheReceiver(t *testing.T) {
	srv := nearcall.NewServer(nearcall.ImmutableMessages(), nearcall.ChainUnaryInterceptor(flat.ReleaseRequests()))
	var pool dirty
	store.RegisterPicturesServer(srv, pictures{put: func(p *store.Picture) {
		if pool.out != 1 || text(p) != text(read(picture("pooled", 50_000))) {
			t.Error("the memory was freed while the handler runs")
		}
	}})
	defer srv.Stop()
	client := store.NewPicturesClient(srv.Client(nearcall.WithDefaultCallOptions(grpc.ForceCodecV2(codec)), nearcall.WithImmutableMessages()))
	for range 3 {
		b := flat.NewBuilder(&pool, 100_000)
		b.Finish(addPicture(b, "pooled", 50_000, 2))
		if _, err := client.Put(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		if pool.out != 0 {
			t.Fatalf("%d pieces of memory are out", pool.out)
		}
	}
}

func TestMessagesOfStreamsAreReleasedAtTheNext(t *testing.T) {
	var pools [3]counted
	next := 0
	stream := func(m any) error {
		if next == len(pools) {
			return io.EOF
		}
		b := picture("released", 100_000).FinishedBytes()
		receive(t, &pools[next], b, m.(flatbuffers.FlatBuffer))
		next++
		return nil
	}
	check := func(t *testing.T, recv func(m any) error, end func()) {
		next, pools = 0, [3]counted{}
		for i := range pools {
			m := new(store.Picture)
			if err := recv(m); err != nil {
				t.Fatal(err)
			}
			for j := range pools {
				if freed := pools[j].freed == 1; freed != (j < i) {
					t.Errorf("after message %d, message %d is released: %v", i, j, freed)
				}
			}
		}
		end()
		if pools[2].freed != 1 {
			t.Error("the last message is not released")
		}
	}
	t.Run("requests", func(t *testing.T) {
		_ = flat.ReleaseStreamRequests()(nil, fakeServerStream{recv: stream}, nil, func(_ any, s grpc.ServerStream) error {
			check(t, s.RecvMsg, func() { _ = s.RecvMsg(new(store.Picture)) })
			return nil
		})
		_ = flat.ReleaseStreamRequests()(nil, fakeServerStream{recv: stream}, nil, func(_ any, s grpc.ServerStream) error {
			next, pools = 2, [3]counted{}
			return s.RecvMsg(new(store.Picture))
		})
		if pools[2].freed != 1 {
			t.Error("the last message is not released when the handler has returned")
		}
	})
	t.Run("replies", func(t *testing.T) {
		s, err := flat.ReleaseStreamReplies()(t.Context(), nil, nil, "", func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
			return fakeClientStream{recv: stream}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		check(t, s.RecvMsg, func() { _ = s.RecvMsg(new(store.Picture)) })
	})
}

type fakeServerStream struct {
	grpc.ServerStream
	recv func(m any) error
}

func (s fakeServerStream) RecvMsg(m any) error { return s.recv(m) }

type fakeClientStream struct {
	grpc.ClientStream
	recv func(m any) error
}

func (s fakeClientStream) RecvMsg(m any) error { return s.recv(m) }

var _ mem.BufferPool = (*dirty)(nil)
