package test

import (
	"testing"

	"github.com/nearcall/nearcall/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }
