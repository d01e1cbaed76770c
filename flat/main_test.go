package flat_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	flatbuffers "github.com/google/flatbuffers/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/flat"
	"github.com/nearcall/nearcall/flat/internal/store"
)

var codec = flat.NewCodec(store.Schema)

func init() { encoding.RegisterCodecV2(codec) }

// picture returns a message with all kinds of fields.
func picture(name string, pixels int) *flatbuffers.Builder {
	b := flatbuffers.NewBuilder(pixels + 1024)
	b.Finish(addPicture(b, name, pixels, 2))
	return b
}

// addPicture adds a picture with pictures in it, nested levels deep.
func addPicture(b *flatbuffers.Builder, name string, pixels, levels int) flatbuffers.UOffsetT {
	offsets := func(all ...flatbuffers.UOffsetT) flatbuffers.UOffsetT {
		b.StartVector(4, len(all), 4)
		for i := len(all) - 1; i >= 0; i-- {
			b.PrependUOffsetT(all[i])
		}
		return b.EndVector(len(all))
	}
	var parts []flatbuffers.UOffsetT
	if levels > 0 {
		parts = append(parts, addPicture(b, name+"/1", 3, levels-1), addPicture(b, name+"/2", 0, levels-1))
	}
	inner := offsets(parts...)
	called := b.CreateString(name)
	data := make([]byte, pixels)
	for i := range data {
		data[i] = byte(i + len(name))
	}
	bytes := b.CreateByteVector(data)
	store.PictureStartPathVector(b, 2)
	store.CreatePoint(b, 1, 2, 3)
	store.CreatePoint(b, 4, 5, 6)
	path := b.EndVector(2)
	words := offsets(b.CreateString("tea"), b.CreateString(""))
	key := b.CreateString("key")
	store.TagStart(b)
	store.TagAddKey(b, key)
	tag := store.TagEnd(b)
	tags := offsets(tag, tag)
	store.SizeStart(b)
	store.SizeAddWidth(b, 640)
	size := store.SizeEnd(b)
	store.PictureStart(b)
	store.PictureAddName(b, called)
	store.PictureAddKind(b, store.KindLarge)
	store.PictureAddAt(b, store.CreatePoint(b, 7, 8, 9))
	store.PictureAddSize(b, size)
	store.PictureAddPixels(b, bytes)
	store.PictureAddPath(b, path)
	store.PictureAddWords(b, words)
	store.PictureAddTags(b, tags)
	store.PictureAddNoteType(b, store.NoteTag)
	store.PictureAddNote(b, tag)
	store.PictureAddParts(b, inner)
	store.PictureAddStamp(b, 42)
	return store.PictureEnd(b)
}

// text returns all that a picture has. It reads all of the message.
func text(p *store.Picture) string {
	var s strings.Builder
	writeText(&s, p)
	return s.String()
}

func writeText(s *strings.Builder, p *store.Picture) {
	fmt.Fprintf(s, "%q %v %x %d", p.Name(), p.Kind(), p.PixelsBytes(), p.Stamp())
	if at := p.At(nil); at != nil {
		fmt.Fprint(s, " at", at.X(), at.Y(), at.Z())
	}
	if size := p.Size(nil); size != nil {
		fmt.Fprint(s, " size", size.Width(), size.Height())
	}
	var point store.Point
	for i := range p.PathLength() {
		if p.Path(&point, i) {
			fmt.Fprint(s, " point", point.X(), point.Y(), point.Z())
		}
	}
	for i := range p.WordsLength() {
		fmt.Fprintf(s, " word %q", p.Words(i))
	}
	for i := range p.TagsLength() {
		var tag store.Tag
		if p.Tags(&tag, i) {
			fmt.Fprintf(s, " tag %q %q", tag.Key(), tag.Value())
		}
	}
	var note flatbuffers.Table
	if p.Note(&note) {
		switch p.NoteType() {
		case store.NoteTag:
			var tag store.Tag
			tag.Init(note.Bytes, note.Pos)
			fmt.Fprintf(s, " note %q %q", tag.Key(), tag.Value())
		case store.NoteSize:
			var size store.Size
			size.Init(note.Bytes, note.Pos)
			fmt.Fprint(s, " note ", size.Width(), size.Height())
		}
	}
	for i := range p.PartsLength() {
		var part store.Picture
		if p.Parts(&part, i) {
			s.WriteString(" (")
			writeText(s, &part)
			s.WriteString(")")
		}
	}
}

// read returns the picture that a builder has.
func read(b *flatbuffers.Builder) *store.Picture { return store.GetRootAsPicture(b.FinishedBytes(), 0) }

// pictures is a service of pictures.
type pictures struct {
	store.UnimplementedPicturesServer
	put   func(*store.Picture) // sees what Put and Echo get; may be nil
	keeps bool                 // Echo releases nothing
}

func (pictures) Get(_ context.Context, q *store.Query) (*flatbuffers.Builder, error) {
	if q.Limit() < 0 {
		return nil, status.Error(codes.InvalidArgument, "a negative limit")
	}
	return picture(string(q.Name()), int(q.Limit())), nil
}

func (p pictures) Put(_ context.Context, in *store.Picture) (*flatbuffers.Builder, error) {
	reply := query(string(in.Name()), in.PixelsLength())
	if p.put != nil {
		p.put(in)
	}
	return reply, nil
}

func (pictures) List(q *store.Query, s store.Pictures_ListServer) error {
	b := flatbuffers.NewBuilder(0)
	for i := range int(q.Limit()) {
		b.Reset()
		b.Finish(addPicture(b, string(q.Name()), i*1000, 1))
		if err := s.Send(b); err != nil {
			return err
		}
	}
	return nil
}

func (p pictures) Echo(s store.Pictures_EchoServer) error {
	for {
		in, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if p.put != nil {
			p.put(in)
		}
		if err := s.SendMsg(in); err != nil { // as it is
			return err
		}
		if !p.keeps {
			flat.Release(in)
		}
	}
}

// query returns a query.
func query(name string, limit int) *flatbuffers.Builder {
	b := flatbuffers.NewBuilder(0)
	called := b.CreateString(name)
	store.QueryStart(b)
	store.QueryAddName(b, called)
	store.QueryAddLimit(b, int32(limit))
	b.Finish(store.QueryEnd(b))
	return b
}

// serve returns a client of p over target, or in process if that is empty.
func serve(t testing.TB, p store.PicturesServer, target string, opts ...nearcall.ServerOption) (store.PicturesClient, *nearcall.ClientConn) {
	t.Helper()
	srv := nearcall.NewServer(append(opts, nearcall.MaxRecvMsgSize(64<<20))...)
	store.RegisterPicturesServer(srv, p)
	t.Cleanup(srv.Stop)
	dial := []nearcall.DialOption{nearcall.WithDefaultCallOptions(grpc.ForceCodecV2(codec), grpc.MaxCallRecvMsgSize(64<<20))}
	var conn *nearcall.ClientConn
	if target == "" {
		conn = srv.Client(dial...)
	} else {
		lis, err := nearcall.Listen(target)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = srv.Serve(lis) }()
		if conn, err = nearcall.NewClient(lis.Target(), dial...); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = conn.Close() })
	return store.NewPicturesClient(conn), conn
}
