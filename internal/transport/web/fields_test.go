package web_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nearcall/nearcall"
)

// tiny returns n fields of a header, as small as they get.
func tiny(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%03x:\n", i)
	}
	return b.String()
}

// TestAHeaderWithTooManyFieldsIsRefused: each costs much more than its bytes.
func TestAHeaderWithTooManyFieldsIsRefused(t *testing.T) {
	s := start(t, &service{})
	call := head("UnaryCall", "Content-Length: 2") + "{}"
	line, rest, _ := strings.Cut(head("UnaryCall", "Connection: close", "Content-Length: 2")+"{}", "\r\n")
	line += "\r\n"
	for name, c := range map[string]struct {
		text  string
		codes []string
	}{
		"as many as are allowed":     {line + tiny(2044) + rest, []string{"200"}},
		"one more":                   {line + tiny(2046) + rest, []string{"431"}},
		"many more":                  {line + tiny(4000) + rest, []string{"431"}},
		"a header that does not end": {line + tiny(4000), []string{"431"}},
		"one name":                   {line + strings.Repeat("a:\n", 4000), []string{"431"}},
		"binary values in one field": {line + "a-bin: " + strings.Repeat(",", 3000) + "\n" + rest, []string{"431"}},
		"the same, of text":          {line + "a: " + strings.Repeat(",", 3000) + "\n" + rest, []string{"200"}},
		"in a further request":       {call + call + line + tiny(4000), []string{"200", "200", "431"}},
		"behind a large body": {
			head("UnaryCall", "Content-Length: 100002") + "{}" + strings.Repeat("\n", 100_000) + line + tiny(4000), []string{"200", "431"},
		},
	} {
		a := s.talk(c.text)
		answers := strings.Split(a, "HTTP/1.1 ")[1:]
		if len(answers) != len(c.codes) {
			t.Errorf("%s: %q", name, a)
			continue
		}
		for i, code := range c.codes {
			if !strings.HasPrefix(answers[i], code+" ") {
				t.Errorf("%s: answer %d is %q, want %s", name, i, answers[i], code)
			}
		}
		last := answers[len(answers)-1]
		if !strings.Contains(last, "Connection: close\r\n") || strings.HasPrefix(last, "431") && !strings.Contains(last, "the header has more than 2048 fields\n") {
			t.Errorf("%s: %q", name, last)
		}
	}
}

// TestTheLimitOfFieldsFollowsThatOfBytes: but it leaves room for what browsers send.
func TestTheLimitOfFieldsFollowsThatOfBytes(t *testing.T) {
	for limit, most := range map[uint32]int{1 << 10: 100, 16 << 10: 512} {
		s := start(t, &service{}, nearcall.MaxHeaderListSize(limit))
		line, rest, _ := strings.Cut(head("UnaryCall", "Connection: close", "Content-Length: 2")+"{}", "\r\n")
		for more, code := range map[int]string{0: "200 OK", 1: "431 Request Header Fields Too Large"} {
			fields := tiny(most - strings.Count(rest, ": ") + 1 + more) // without Host
			if a := s.talk(line + "\r\n" + fields + rest); !strings.HasPrefix(a, "HTTP/1.1 "+code+"\r\n") {
				t.Errorf("with a limit of %d bytes %d fields more than %d are answered with %q", limit, more, most, a)
			}
		}
	}
}

// TestLinesOfABodyAreNoFields: they are often read together with the header.
func TestLinesOfABodyAreNoFields(t *testing.T) {
	s := start(t, &service{}, nearcall.MaxHeaderListSize(1<<10))
	for _, lines := range []int{300, 3000, 300_000} {
		body := "{" + strings.Repeat("\n", lines) + "}"
		length := fmt.Sprintf("Content-Length: %d", len(body))
		text := strings.Repeat(head("UnaryCall", length)+body, 20) + head("UnaryCall", length, "Connection: close") + body
		if a := s.talk(text); strings.Count(a, "HTTP/1.1 200 ") != 21 {
			t.Errorf("%d lines: %q", lines, a)
		}
	}
}
