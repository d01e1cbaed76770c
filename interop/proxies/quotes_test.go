package proxies

import (
	"os"
	"strings"
	"testing"
)

// TestThePageQuotesTheFiles checks that docs/browser.md shows the files that are tested here.
func TestThePageQuotesTheFiles(t *testing.T) {
	page := read(t, "../../docs/browser.md")
	_, caller, ok := strings.Cut(read(t, "caller.go"), "\n// CallerOf")
	if !ok {
		t.Fatal("caller.go has no CallerOf")
	}
	for name, quote := range map[string]string{
		"nginx.conf": "```nginx\n" + read(t, "nginx.conf") + "```\n",
		"Caddyfile":  "```caddyfile\n" + read(t, "Caddyfile") + "```\n",
		"caller.go":  "```go\n// CallerOf" + caller + "```\n",
	} {
		if !strings.Contains(page, quote) {
			t.Errorf("docs/browser.md does not quote %s as it is", name)
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
