package main

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nearcall/nearcall/internal/testing/needs"
)

// TestMain runs the program itself if the environment says so.
func TestMain(m *testing.M) {
	if os.Getenv("NEARCALL_EXAMPLE") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), "NEARCALL_EXAMPLE=1")
	cmd.Stderr = os.Stderr
	return cmd
}

func TestTheProgramRuns(t *testing.T) {
	needs.UnixSockets(t)
	socket := "-socket=" + filepath.Join(t.TempDir(), "s")
	serve := program(t, socket, "-http=127.0.0.1:0", "serve")
	out, err := serve.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = serve.Process.Kill()
		_ = serve.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	url := regexp.MustCompile(`http://\S+`).FindString(line)

	for client, want := range map[string]string{"connect": "Hello, Connect\n", "grpc": "Hello, gRPC\n"} {
		if out, err := program(t, socket, client).Output(); err != nil || string(out) != want {
			t.Errorf("%s prints %q and ends with %v", client, out, err)
		}
	}
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Contains(page, []byte(`src="page.js"`)) {
		t.Errorf("the page is %q, and the error %v", page, err)
	}
	_ = resp.Body.Close()
	for request, want := range map[string]string{ // as curl does
		`{"name": "curl"}`: `{"text":"Hello, curl"}`,
		`{}`:               `{"code":"invalid_argument","message":"who are you?"}`,
	} {
		resp, err := http.Post(url+"/greet.v1.Greeter/Greet", "application/json", strings.NewReader(request))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if got := strings.Replace(string(body), `": "`, `":"`, 1); err != nil || got != want {
			t.Errorf("%s gets %s and %v", request, body, err)
		}
		_ = resp.Body.Close()
	}
}
