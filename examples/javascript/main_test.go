package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/testing/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestTheProgramSaysThatAllAgree(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var said strings.Builder
	if err := run(ctx, &said); err != nil {
		t.Fatalf("%v, after it has said:\n%s", err, &said)
	}
	for _, want := range []string{
		"placed 3 orders of 6",
		"too few of caviar (code 8, 0 left)",
		"sold 1000 to 20 callers at a time, in process",
		"sold 1000 to 20 callers at a time, over TCP",
		"ResourceExhausted, details [item:",
		"sold 2000",
	} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, &said)
		}
	}
}
