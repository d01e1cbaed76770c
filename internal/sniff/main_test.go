package sniff

import (
	"testing"

	"github.com/nearcall/nearcall/internal/testing/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }
