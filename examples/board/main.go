// Command board is a drawing board that many people share, in web pages and Go programs. It
// serves the page and the service on one port:
//
//	go run ./examples/board
//
// then open http://localhost:8080 in two windows and draw. A Go client draws with them:
//
//	go run ./examples/board -draw ws://localhost:8080/calls
//
// The service is an ordinary one of gRPC with a bidi stream. The page calls it with an ordinary
// client of connect-es over @nearcall/web; its source is web/board. Only the line that creates the
// transport differs from a page that uses connect-web.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/board/boardpb"
)

func main() {
	address := flag.String("listen", "localhost:8080", "the `address` of the page and the service")
	target := flag.String("draw", "", "draw a flower on the board at this `target`, and print how many points others draw")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	run := func() error { return listenAndServe(ctx, *address) }
	if *target != "" {
		run = func() error { return drawFlower(ctx, *target, os.Stdout) }
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// listenAndServe serves until ctx ends.
func listenAndServe(ctx context.Context, address string) error {
	lis, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Printf("the board is at http://%s\n", lis.Addr())
	srv := nearcall.NewServer()
	pb.RegisterBoardServer(srv, newBoard(ctx.Done()))
	site, err := newSite(srv)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- site.Serve(lis) }()
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	srv.GracefulStop() // Shutdown knows nothing of WebSockets
	return cmp.Or(err, ignoreClosed(site.Shutdown(context.Background())))
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
