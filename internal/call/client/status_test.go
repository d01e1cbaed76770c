package client

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/nearcall/nearcall/internal/link"
)

// TestDetailsOfAnotherCodeAreNamed, in a text that is not longer than they are.
func TestDetailsOfAnotherCodeAreNamed(t *testing.T) {
	for _, n := range []int{1, maxDetailsText} {
		p := status.New(codes.Aborted, "no").Proto()
		for range n {
			p.Details = append(p.Details, new(anypb.Any))
		}
		details, err := proto.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		st := statusWith(status.New(codes.NotFound, "yes"), metadata.MD{link.DetailsKey: {string(details)}})
		if got := st.Message(); st.Code() != codes.Internal || !strings.Contains(got, "mismatch: grpc-status=NotFound") || len(got) > 200 {
			t.Errorf("%d details: %v, %.300s", n, st.Code(), got)
		}
	}
}
