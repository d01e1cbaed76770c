package main

import (
	"bytes"
	"context"
	"fmt"

	flatbuffers "github.com/google/flatbuffers/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"

	"github.com/nearcall/nearcall/bench/internal/blobs"
	"github.com/nearcall/nearcall/flat"
)

// FlatBuffer builds a FlatBuffer and receives one with the same bytes, which the handler has built.
// Both sides build a message for each call, in the memory of the connection where it has any.
var FlatBuffer = Kind{"FlatBuffer", true, openFlatBuffer}

// onlyFlat is why most rivals take no part in the rows of FlatBuffers.
const onlyFlat = "nearcall and grpc-go alone carry FlatBuffers here"

func init() { encoding.RegisterCodecV2(flat.NewCodec(blobs.Schema)) }

// built returns a blob that is built with b.
func built(b *flatbuffers.Builder, body []byte) *flatbuffers.Builder {
	at := b.CreateByteVector(body)
	blobs.BlobStart(b)
	blobs.BlobAddBody(b, at)
	b.Finish(blobs.BlobEnd(b))
	return b
}

// Swap returns a blob like in.
func (service) Swap(ctx context.Context, in *blobs.Blob) (*flatbuffers.Builder, error) {
	b := built(flat.NewReply(ctx, in.BodyLength()+100), in.BodyBytes())
	flat.Release(in)
	return b, nil
}

func openFlatBuffer(ctx context.Context, conn Conn, row Row) (lane, error) {
	body := payload(row.Size).Body
	subtype := grpc.CallContentSubtype(flat.Name)
	return lane{op: func(closely bool) error {
		out, err := conn.Blobs.Swap(ctx, built(flat.NewRequest(conn.On, len(body)+100), body), subtype)
		if err != nil {
			return err
		}
		defer flat.Release(out)
		got := out.BodyBytes()
		if len(got) != len(body) {
			return check("bytes in the reply", len(got), len(body))
		}
		if got[0] != body[0] || got[len(got)-1] != body[len(body)-1] || closely && !bytes.Equal(got, body) {
			return fmt.Errorf("wrong answer: the bytes in the reply are not those that were sent")
		}
		return nil
	}}, nil
}
