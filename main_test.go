package nearcall_test

import (
	"flag"
	"fmt"
	"testing"

	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

func TestMain(m *testing.M) {
	if !needs.HasUnixSockets() { // an example cannot skip itself
		fmt.Println("left out: Example_unix: the system has no unix sockets")
		_ = flag.Set("test.skip", "^Example_unix$")
	}
	leak.Main(m)
}
