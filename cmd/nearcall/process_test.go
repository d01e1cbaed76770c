package main

import (
	"io"
	"os"
	"strings"
	"testing"
)

func TestAProcessStartsAndStops(t *testing.T) {
	for _, who := range []string{byNearcall, byGRPC} {
		for _, network := range []string{"unix", "tcp"} {
			t.Run(who+"/"+network, func(t *testing.T) {
				target, stop, err := startProcess(who, network)
				if err != nil {
					t.Fatal(err)
				}
				path, isUnix := strings.CutPrefix(target, "unix:")
				if isUnix != (network == "unix") || !isUnix && !strings.HasPrefix(target, "tcp:127.0.0.1:") {
					t.Errorf("it serves %s", target)
				}
				if _, err := os.Stat(path); isUnix && err != nil {
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
