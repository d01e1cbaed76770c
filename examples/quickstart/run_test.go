package quickstart_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/testing/needs"
)

// TestTheProgramsRun builds the README's programs with a different socket, and runs them.
func TestTheProgramsRun(t *testing.T) {
	needs.UnixSockets(t)
	needs.Program(t, "go")
	if testing.Short() {
		t.Skip("-short: does not build and run two programs")
	}
	dir := t.TempDir()
	server := build(t, dir, "server")
	client := build(t, dir, "client")

	serve := exec.Command(server)
	serve.Stdout, serve.Stderr = os.Stderr, os.Stderr
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = serve.Process.Kill()
		_ = serve.Wait()
	}()
	deadline := time.Now().Add(30 * time.Second)
	for {
		var out bytes.Buffer
		call := exec.Command(client)
		call.Stdout, call.Stderr = &out, &out
		err := call.Run()
		if err == nil {
			if !regexp.MustCompile(`^Hello, world\n$`).Match(out.Bytes()) {
				t.Errorf("the client printed %q", out.String())
			}
			return
		}
		// Retry until the server listens.
		if time.Now().After(deadline) {
			t.Fatalf("%v: %s", err, out.Bytes())
		}
	}
}

// build builds one of the programs with a socket in dir.
func build(t *testing.T, dir, name string) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(name, "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	const socket = "unix:/tmp/greeter.sock"
	if strings.Count(string(source), socket) != 1 {
		t.Fatalf("%s/main.go does not name %s once", name, socket)
	}
	// An overlay keeps the changed program part of this module.
	path, err := filepath.Abs(filepath.Join(name, "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	changed := filepath.Join(dir, name+".go")
	replaced := strings.Replace(string(source), socket, "unix:"+filepath.ToSlash(filepath.Join(dir, "s")), 1)
	if err := os.WriteFile(changed, []byte(replaced), 0o600); err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, name+".json")
	files, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, files, 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, name+".exe")
	if out, err := exec.Command("go", "build", "-overlay", overlay, "-o", program, "./"+name).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	return program
}
