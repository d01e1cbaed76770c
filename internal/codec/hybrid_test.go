//go:build !protoopaque

package codec

import (
	"testing"

	"github.com/nearcall/nearcall/internal/codec/internal/testpb"
)

// The build tag protoopaque makes the hybrid API opaque.
func TestHybridMessagesAreCopied(t *testing.T) {
	src := &testpb.Hybrid{Text: "text", Number: new(int32(0)), Child: &testpb.Hybrid{}}
	if _, ok, err := Proto().Copy(&testpb.Hybrid{}, src); !ok || err != nil {
		t.Errorf("Copy = %v, %v", ok, err)
	}
	if err := check(&testpb.Hybrid{}, src); err != nil {
		t.Error(err)
	}
}
