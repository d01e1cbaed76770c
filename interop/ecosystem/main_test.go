package ecosystem

import (
	"testing"

	"github.com/nearcall/nearcall/internal/testing/leak"
)

func TestMain(m *testing.M) {
	if isPlugin() {
		servePlugin()
		return
	}
	leak.Main(m)
}
