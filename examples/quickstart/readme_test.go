package quickstart_test

import (
	"os"
	"strings"
	"testing"
)

// TestReadmeShowsThePrograms checks that README's listings equal the files that are tested here.
func TestReadmeShowsThePrograms(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for file, language := range map[string]string{
		"greetpb/greet.proto": "proto",
		"server/main.go":      "go",
		"client/main.go":      "go",
	} {
		listing, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(readme), "```"+language+"\n"+string(listing)+"```\n") {
			t.Errorf("README.md does not show %s as it is", file)
		}
	}
}
