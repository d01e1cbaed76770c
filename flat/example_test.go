package flat_test

import (
	"context"
	"fmt"
	"log"

	flatbuffers "github.com/google/flatbuffers/go"
	"google.golang.org/grpc"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/flat"
	"github.com/nearcall/nearcall/flat/internal/store"
)

// A shop has pictures. Its stubs are in the package store, which flatc has generated.
type shop struct {
	store.UnimplementedPicturesServer
}

func (shop) Get(_ context.Context, q *store.Query) (*flatbuffers.Builder, error) {
	b := flatbuffers.NewBuilder(1 << 20)
	name := b.CreateByteString(q.Name())
	pixels := b.CreateByteVector(make([]byte, 1<<20))
	store.PictureStart(b)
	store.PictureAddName(b, name)
	store.PictureAddPixels(b, pixels)
	b.Finish(store.PictureEnd(b))
	return b, nil
}

// A server and a client of FlatBuffers. store.Schema is what flatc --binary --schema has written,
// embedded into the program.
func ExampleNewCodec() {
	codec := flat.NewCodec(store.Schema)

	srv := nearcall.NewServer(nearcall.ForceServerCodecV2(codec))
	defer srv.Stop()
	store.RegisterPicturesServer(srv, shop{})
	lis, err := nearcall.Listen("tcp:127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go srv.Serve(lis)

	conn, err := nearcall.NewClient(lis.Target(), nearcall.WithDefaultCallOptions(grpc.ForceCodecV2(codec)))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	client := store.NewPicturesClient(conn)

	b := flatbuffers.NewBuilder(64)
	name := b.CreateString("teapot")
	store.QueryStart(b)
	store.QueryAddName(b, name)
	b.Finish(store.QueryEnd(b))

	picture, err := client.Get(context.Background(), b)
	if err != nil {
		log.Fatal(err)
	}
	defer flat.Release(picture)
	fmt.Printf("%s: %d pixels\n", picture.Name(), picture.PixelsLength())
	// Output: teapot: 1048576 pixels
}

// gallery builds its replies in the memory that they are sent from.
type gallery struct {
	store.UnimplementedPicturesServer
}

func (gallery) Get(ctx context.Context, q *store.Query) (*flatbuffers.Builder, error) {
	const pixels = 1 << 20
	b := flat.NewReply(ctx, pixels+1024)
	name := b.CreateByteString(q.Name())
	data := b.CreateByteVector(make([]byte, pixels))
	store.PictureStart(b)
	store.PictureAddName(b, name)
	store.PictureAddPixels(b, data)
	b.Finish(store.PictureEnd(b))
	return b, nil
}

// In one process the caller reads what the handler has built, since both sides promise not to change
// messages. Over shared memory it is copied once, and read after that.
func ExampleNewReply() {
	codec := flat.NewCodec(store.Schema)
	srv := nearcall.NewServer(nearcall.ForceServerCodecV2(codec), nearcall.ImmutableMessages())
	defer srv.Stop()
	store.RegisterPicturesServer(srv, gallery{})
	conn := srv.Client(nearcall.WithDefaultCallOptions(grpc.ForceCodecV2(codec)), nearcall.WithImmutableMessages())
	defer conn.Close()

	b := flat.NewRequest(conn, 256)
	name := b.CreateString("teapot")
	store.QueryStart(b)
	store.QueryAddName(b, name)
	b.Finish(store.QueryEnd(b))
	picture, err := store.NewPicturesClient(conn).Get(context.Background(), b)
	if err != nil {
		log.Fatal(err)
	}
	defer flat.Release(picture)
	fmt.Printf("%s: %d pixels\n", picture.Name(), picture.PixelsLength())
	// Output: teapot: 1048576 pixels
}
