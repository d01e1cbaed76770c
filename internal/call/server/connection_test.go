package server

import (
	"context"
	"testing"
)

type connectionKey struct{} // has the right name, but in the wrong package

func TestOnlyThatKeyFindsTheConnection(t *testing.T) {
	b := start(t, handlers{Unary: func(ctx context.Context, m *msg) (*msg, error) {
		for _, key := range []any{nil, 1, "transport.connectionKey", connectionKey{}, struct{}{}} {
			if v := ctx.Value(key); v != nil {
				t.Errorf("%T: %v", key, v)
			}
		}
		return m, nil
	}}, nil, nil)
	if _, err := b.call(t.Context()); err != nil {
		t.Error(err)
	}
}
