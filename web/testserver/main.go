// Command testserver serves Probe for the tests of @nearcall/web. It prints its target, and
// obeys commands on its standard input: "stop" stops it gracefully, the end of input at once.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/web/testserver/probe"
	"github.com/nearcall/nearcall/web/testserver/probepb"
)

func main() {
	listen := flag.String("listen", "ws://127.0.0.1:0/calls", "target")
	origins := flag.String("origins", "", "the origin of pages that may make calls")
	calls := flag.Uint("calls", 0, "MaxConcurrentStreams; 0 for the default")
	flag.Parse()
	log.SetFlags(0)
	opts := []nearcall.ServerOption{nearcall.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 100 * time.Millisecond, PermitWithoutStream: true})}
	if *origins != "" {
		opts = append(opts, nearcall.WebOrigins(*origins))
	}
	if *calls > 0 {
		opts = append(opts, nearcall.MaxConcurrentStreams(uint32(*calls)))
	}
	srv := nearcall.NewServer(opts...)
	probepb.RegisterProbeServer(srv, new(probe.Server))
	lis, err := nearcall.Listen(*listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(lis.Target())
	go func() {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			if in.Text() == "stop" {
				srv.GracefulStop()
			}
		}
		srv.Stop()
	}()
	if err := srv.Serve(lis); err != nil {
		log.Fatal(err)
	}
}
