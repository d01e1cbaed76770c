package main

import (
	"context"
	"embed"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The scripts ask this command what could follow the words before the cursor.
//
//go:embed shells
var shells embed.FS

var completionCommand = command{
	name: "completion", args: "bash|zsh|fish", about: "print a completion script for a shell",
	least: 1, most: 1, setup: completionJob,
	more: "The script completes commands, flags, targets and, by asking the server, services and methods.\n\n" +
		"  bash: source <(nearcall completion bash)              in ~/.bashrc\n" +
		"  zsh:  source <(nearcall completion zsh)               in ~/.zshrc, after compinit\n" +
		"  fish: nearcall completion fish | source               in ~/.config/fish/config.fish\n",
}

func completionJob(*flag.FlagSet) job {
	return job{
		do: func(_ context.Context, args []string, std stdio) error {
			script, err := shells.ReadFile("shells/nearcall." + args[0])
			if err != nil {
				return usageError(fmt.Sprintf("there is no script for %q; write bash, zsh or fish", args[0]))
			}
			_, err = std.out.Write(script)
			return err
		},
		complete: func(_ context.Context, args []string, _ string) []string {
			if len(args) > 0 {
				return nil
			}
			return []string{"bash", "zsh", "fish"}
		},
	}
}

// completeName is the command that the completion scripts run. Help does not list it.
const completeName = "__complete"

// completeTime is how long a server can take to tell what it has. Tests give it more.
var completeTime = 2 * time.Second

// complete prints the possible completions of the last word in words, one per line. Servers choose
// the names of their services, and other users those of their files. Shells differ in what they
// quote, so a name is left out if a shell could read it as more than a word, or nearcall as a flag.
func complete(ctx context.Context, words []string, w io.Writer) {
	if len(words) == 0 {
		return
	}
	begun := words[len(words)-1]
	for _, c := range candidates(ctx, words[:len(words)-1], begun) {
		if rest, ok := strings.CutPrefix(c, begun); ok && isWord(rest) && (begun != "" || !strings.HasPrefix(c, "-")) {
			fmt.Fprintln(w, c)
		}
	}
}

// candidates returns what could follow words.
func candidates(ctx context.Context, words []string, begun string) (all []string) {
	if len(words) == 0 || words[0] == "help" && len(words) == 1 {
		for _, c := range commands {
			all = append(all, c.name)
		}
		return append(all, "help")
	}
	c, ok := find(words[0])
	if !ok {
		return nil
	}
	flags, job := c.flags()
	if strings.HasPrefix(begun, "-") {
		flags.VisitAll(func(f *flag.Flag) { all = append(all, "-"+f.Name) })
		return all
	}
	args, err := parse(flags, words[1:])
	if err != nil || job.complete == nil { // an error is most often a flag that lacks its value
		return nil
	}
	return job.complete(ctx, args, begun)
}

// completion returns the complete function of a command that takes a target and one of the names
// that the function names returns.
func (f *connFlags) completion(names func(*remote) ([]string, error)) func(context.Context, []string, string) []string {
	return func(ctx context.Context, args []string, begun string) []string {
		switch len(args) {
		case 0:
			return targets(begun)
		case 1:
			ctx, cancel := context.WithTimeout(ctx, completeTime)
			defer cancel()
			_, p, err := f.open(ctx, args[0])
			if err != nil {
				return nil
			}
			defer p.close()
			all, _ := names(p)
			return all
		}
		return nil
	}
}

func (p *remote) serviceNames() ([]string, error) { return p.schema.Services() }

// targets returns the schemes of targets. If begun already has a scheme, targets returns the
// sockets and folders that can complete begun.
func targets(begun string) []string {
	scheme, path, ok := strings.Cut(begun, ":")
	if !ok {
		return []string{"unix:", "unix-abstract:", "shm:", "tcp:", "ws://", "wss://", "quic:", "dns:///", "grpc:", "grpc:unix:", "localhost:"}
	}
	if inner, rest, ok := strings.Cut(path, ":"); ok && scheme == "grpc" {
		scheme, path = scheme+":"+inner, rest
	}
	if scheme != "unix" && scheme != "shm" && scheme != "grpc:unix" {
		return nil
	}
	dir, _ := filepath.Split(path)
	entries, err := os.ReadDir(filepath.Clean("./" + dir))
	if filepath.IsAbs(path) {
		entries, err = os.ReadDir(filepath.Clean(dir))
	}
	if err != nil {
		return nil
	}
	var all []string
	for _, e := range entries {
		switch {
		case e.IsDir():
			all = append(all, scheme+":"+dir+e.Name()+"/")
		case e.Type()&fs.ModeSocket != 0:
			all = append(all, scheme+":"+dir+e.Name())
		}
	}
	return all
}
