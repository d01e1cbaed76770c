package fleet

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"google.golang.org/grpc/grpclog"

	"github.com/nearcall/nearcall/internal/testing/leak"
)

// wanted is set by make fleet: "short" or "full". Otherwise the tests are skipped.
var wanted = os.Getenv("NEARCALL_FLEET")

// TestMain runs the tests in the network namespace of the clients' machine.
func TestMain(m *testing.M) {
	flag.Parse()
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	switch {
	case os.Getenv(roleKey) != "":
		serve()
	case wanted == "" || os.Getenv(insideKey) != "":
		leak.Main(m)
	default:
		os.Exit(inside())
	}
}

const insideKey = "NEARCALL_FLEET_INSIDE"

// inside runs this program again on the clients' machine, and returns its exit code.
func inside() int {
	missing := ""
	if os.Getuid() != 0 {
		missing = "root"
	}
	for _, p := range []string{"ip", "tc", "etcd"} {
		if _, err := exec.LookPath(p); err != nil {
			missing = p
		}
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM) // the tests get them as well, and the network must go afterwards
	n := network{prefix: fmt.Sprint("fleet", os.Getpid())}
	if missing == "" {
		if err := n.start(); err != nil {
			missing = err.Error()
		}
	}
	defer n.end()
	if missing != "" {
		fmt.Printf("**** NO SERVERS WERE KILLED: the tests of fleets need Linux's network namespaces, root, ip, tc and etcd; here is missing: %s ****\n", missing)
		return 0
	}
	cmd := exec.Command("ip", append([]string{"netns", "exec", n.name(clients), os.Args[0]}, os.Args[1:]...)...)
	cmd.Env = append(os.Environ(), insideKey+"="+n.prefix)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}
