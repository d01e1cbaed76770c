package main

import (
	"cmp"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall/internal/testing/needs"
)

func TestAProcessStartsAndStops(t *testing.T) {
	for _, who := range []string{byNearcall, byGRPC} {
		for _, network := range networksOf(who) {
			t.Run(who+"/"+network, func(t *testing.T) {
				inFiles := network == "unix" || network == "shm"
				if inFiles {
					needs.UnixSockets(t)
				}
				target, stop, err := startProcess(who, network)
				if err != nil {
					t.Fatal(err)
				}
				scheme, path, _ := strings.Cut(target, ":")
				if scheme != network || !inFiles && !strings.HasPrefix(strings.TrimPrefix(path, "//"), "127.0.0.1:") {
					t.Errorf("it serves %s", target)
				}
				if _, err := os.Stat(path); inFiles && err != nil {
					t.Error(err)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
				if _, err := os.Stat(path); err == nil {
					t.Error("its socket is left")
				}
			})
		}
	}
}

// networksOf returns the networks that a second process of a tour serves on.
func networksOf(who string) []string {
	switch {
	case who == byGRPC:
		return []string{"unix", "tcp"}
	case runtime.GOOS == "linux":
		return []string{"unix", "shm", "tcp", "ws"}
	}
	return []string{"unix", "tcp", "ws"}
}

// TestCallsToAProcessGoOverItsNetwork checks that calls use the network in the path's name.
func TestCallsToAProcessGoOverItsNetwork(t *testing.T) {
	for _, network := range networksOf(byNearcall) {
		t.Run(network, func(t *testing.T) {
			if network == "unix" || network == "shm" {
				needs.UnixSockets(t)
			}
			c, err := overProcess(byNearcall, network)(nil)
			if err != nil {
				t.Fatal(err)
			}
			var p peer.Peer
			if _, err := c.client.UnaryCall(c.ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{}}, grpc.Peer(&p)); err != nil {
				t.Error(err)
			} else if got, want := p.Addr.Network(), map[string]string{"ws": "tcp"}[network]; got != cmp.Or(want, network) {
				t.Errorf("calls go over %s", got)
			}
			if err := c.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAProcessThatCannotServe(t *testing.T) {
	if err := serveTarget(byNearcall, "pigeon:loft", strings.NewReader(""), io.Discard); err == nil {
		t.Error("there is no network of pigeons")
	}
}

func TestAProcessSaysWhereItServes(t *testing.T) {
	var out strings.Builder
	if err := serveTarget(byNearcall, "tcp:127.0.0.1:0", strings.NewReader(""), &out); err != nil {
		t.Fatal(err)
	}
	if s := out.String(); !strings.HasPrefix(s, "tcp:127.0.0.1:") || strings.Count(s, "\n") != 1 || strings.HasSuffix(s, ":0\n") {
		t.Errorf("it says %q", s)
	}
}
