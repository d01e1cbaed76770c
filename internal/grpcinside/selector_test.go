package grpcinside

import (
	"context"
	"testing"

	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/resolver"
)

type keyType string

// Config selectors are recognised by the name of their key alone, whatever else the attributes have.
func TestAStateWithoutAConfigSelectorHasNone(t *testing.T) {
	const name = "grpc.internal.resolver.configSelector"
	for what, a := range map[string]*attributes.Attributes{
		"no attributes":      nil,
		"other attributes":   attributes.New(keyType("other"), 1).WithValue(struct{}{}, name),
		"a value of another": attributes.New(keyType("other"), keyType(name)),
	} {
		if s := SelectorOf(resolver.State{Attributes: a}); s != nil {
			t.Errorf("%s: found %v", what, s)
		}
	}
	if SelectorOf(resolver.State{Attributes: attributes.New("a", 1).WithValue(keyType(name), context.Background()).WithValue("b", 2)}) == nil {
		t.Error("the key is not found between others")
	}
}
