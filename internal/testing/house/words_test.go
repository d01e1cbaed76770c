package house

import (
	"bufio"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// wordsFile lists the phrases banned from comments, docs and messages. Each line is a
// regular expression, a tab, and the reason.
const wordsFile = "words.txt"

// A bannedWord is a line of wordsFile.
type bannedWord struct {
	pattern *regexp.Regexp
	reason  string
}

// A passage is a piece of a file's text, with the line where it begins.
type passage struct {
	file string
	line int
	text string
}

func TestBannedWordsAreNotUsed(t *testing.T) {
	const root = "../../.."
	banned := readWords(t)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "testdata", "results", "node_modules", "dist"}, d.Name()):
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, p := range passages(t, path, string(content)) {
			for _, wrong := range offences(p, banned) {
				t.Error(strings.TrimPrefix(wrong, root+"/"))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The checker finds a banned word in comments of all kinds, in messages and in
// documents, also across the end of a line.
func TestBannedWordsAreFound(t *testing.T) {
	banned := []bannedWord{{regexp.MustCompile(`\bmust\s+never\b`), "say must not"}}
	for name, content := range map[string]string{
		"a.go":     "// Package a must never\n// be used.\npackage a\n",
		"b.go":     "package b\n\nfunc f() { println(1) /* it must never\n\tstay */ }\n",
		"c.go":     "package c\n\nimport \"errors\"\n\nvar err = errors.New(\"a peer must never say that\")\n",
		"d.go":     "package d\n\nvar s = `it must never\nbe`\n",
		"e.md":     "# A title\n\nWhat must\nnever be.\n",
		"Makefile": "all: # it must never fail\n",
		"run":      "#!/bin/sh\n# This must never fail.\n",
	} {
		found := 0
		for _, p := range passages(t, name, content) {
			found += len(offences(p, banned))
		}
		if found != 1 {
			t.Errorf("%s: found %d times in %q", name, found, content)
		}
	}
	const sound = "package sound\n\nvar must, never int\n\nvar _ = must - // must\n\tnever\n"
	for _, p := range passages(t, "sound.go", sound) {
		if wrong := offences(p, banned); len(wrong) > 0 {
			t.Errorf("code is no prose: %q", wrong)
		}
	}
}

// quoted lists messages that must keep the wording of other projects, because
// programs may compare them.
var quoted = []string{
	"tokenRatio (%v) may not be negative", // grpc-go's
}

func readWords(t *testing.T) (banned []bannedWord) {
	t.Helper()
	f, err := os.Open(wordsFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, reason, ok := strings.Cut(line, "\t")
		if reason = strings.TrimSpace(reason); !ok || reason == "" {
			t.Fatalf("%s: %q has no reason", wordsFile, line)
		}
		re, err := regexp.Compile(`(?i)` + strings.ReplaceAll(pattern, " ", `\s+`))
		if err != nil {
			t.Fatalf("%s: %v", wordsFile, err)
		}
		banned = append(banned, bannedWord{re, reason})
	}
	if err := lines.Err(); err != nil || len(banned) == 0 {
		t.Fatalf("%s has %d words: %v", wordsFile, len(banned), err)
	}
	return banned
}

// offences returns what is wrong with a passage, a line each.
func offences(p passage, banned []bannedWord) (wrong []string) {
	if slices.ContainsFunc(quoted, func(q string) bool { return strings.Contains(p.text, q) }) {
		return nil
	}
	for _, w := range banned {
		for _, at := range w.pattern.FindAllStringIndex(p.text, -1) {
			line := p.line + strings.Count(p.text[:at[0]], "\n")
			wrong = append(wrong, fmt.Sprintf("%s:%d: %q: %s", p.file, line, p.text[at[0]:at[1]], w.reason))
		}
	}
	return wrong
}

// passages returns the prose of a file: the comments and string literals of a Go file,
// the comments of a script or Makefile, and all of a document.
func passages(t *testing.T, path, content string) []passage {
	t.Helper()
	name := filepath.Base(path)
	ext := filepath.Ext(name)
	if ext != ".go" && ext != ".md" && ext != ".ts" && name != "Makefile" && name != "run" {
		return nil
	}
	switch {
	case ext == ".md", ext == ".ts" && !strings.HasSuffix(name, "_pb.ts"):
		return []passage{{path, 1, content}}
	case ext == ".ts":
		return nil
	case ext != ".go":
		return comments(path, content)
	case strings.Contains(content, "// Code generated "):
		return nil
	}
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, path, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var all []passage
	add := func(at token.Pos, text string) { all = append(all, passage{path, files.Position(at).Line, text}) }
	for _, group := range parsed.Comments {
		var lines []string
		for _, c := range group.List {
			lines = append(lines, strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(c.Text, "//"), "/*"), "*/"))
		}
		add(group.Pos(), strings.Join(lines, "\n"))
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if s, ok := n.(*ast.BasicLit); ok && s.Kind == token.STRING {
			add(s.Pos(), s.Value)
		}
		return true
	})
	slices.SortFunc(all, func(a, b passage) int { return cmp.Compare(a.line, b.line) })
	return all
}

// comments returns the comments of a shell script or a Makefile.
func comments(path, content string) (all []passage) {
	for n, line := range strings.Split(content, "\n") {
		if _, comment, ok := strings.Cut(line, "#"); ok {
			all = append(all, passage{path, n + 1, comment})
		}
	}
	return all
}
