// Command nearcall shows what package nearcall does.
//
//	nearcall tour     call one service by every path and compare with gRPC
//	nearcall help     list the commands, or the flags of one
//
// The exit code is 0, or 1 if something failed, 2 for a wrong command line, and 130 if the
// command was interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/nearcall/nearcall"
)

const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130 // as shells report a command that Ctrl-C ended
)

func main() {
	if beTheProcess() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// A command is a command that the first argument selects. It has its own flag set, so that
// help can list its flags.
type command struct {
	name, about string
	flags       func() (*flag.FlagSet, action)
}

// An action executes a command after its flags are parsed. It returns when ctx is done.
type action func(ctx context.Context, stdout, stderr io.Writer) error

var commands = []command{
	{"tour", "call one service by every path, with gRPC beside it", tourFlags},
}

// run executes the command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	top := flag.NewFlagSet("nearcall", flag.ContinueOnError)
	top.SetOutput(io.Discard)
	version := top.Bool("version", false, "print the version")
	switch err := top.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return help(nil, stdout, stderr)
	case err != nil:
		return misused(stderr, "nearcall: %v; 'nearcall help' lists what there is", err)
	case *version:
		fmt.Fprintf(stdout, "nearcall %s (%s, %s/%s)\n", nearcall.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return exitOK
	case top.NArg() == 0:
		usage(stderr)
		return exitUsage
	}
	name, args := top.Arg(0), top.Args()[1:]
	if name == "help" {
		return help(args, stdout, stderr)
	}
	c, ok := find(name)
	if !ok {
		return unknown(stderr, name)
	}
	return c.run(ctx, args, stdout, stderr)
}

func (c command) run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags, do := c.flags()
	flags.SetOutput(io.Discard)
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		c.help(stdout)
		return exitOK
	case err != nil:
		return misused(stderr, "nearcall %s: %v; 'nearcall help %s' lists the flags", c.name, err, c.name)
	case flags.NArg() > 0:
		return misused(stderr, "nearcall %s: unexpected argument %q; it takes flags only", c.name, flags.Arg(0))
	}
	var bad usageError
	switch err := do(ctx, stdout, stderr); {
	case err == nil:
		return exitOK
	case ctx.Err() != nil:
		fmt.Fprintf(stderr, "nearcall %s: interrupted\n", c.name)
		return exitInterrupted
	case errors.As(err, &bad):
		return misused(stderr, "nearcall %s: %v", c.name, err)
	default:
		fmt.Fprintf(stderr, "nearcall %s: %v\n", c.name, err)
		return exitFailed
	}
}

// A usageError is an error in the command line, such as a flag's value.
type usageError string

func (e usageError) Error() string { return string(e) }

func find(name string) (command, bool) {
	for _, c := range commands {
		if c.name == name {
			return c, true
		}
	}
	return command{}, false
}

func unknown(stderr io.Writer, name string) int {
	return misused(stderr, "nearcall: there is no command %q; 'nearcall help' lists what there is", name)
}

func misused(stderr io.Writer, format string, args ...any) int {
	fmt.Fprintf(stderr, format+"\n", args...)
	return exitUsage
}

func help(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		usage(stdout)
		return exitOK
	}
	c, ok := find(args[0])
	if !ok {
		return unknown(stderr, args[0])
	}
	c.help(stdout)
	return exitOK
}

func usage(w io.Writer) {
	fmt.Fprint(w, "nearcall runs gRPC services over the nearest path between caller and callee.\n\n"+
		"usage: nearcall COMMAND [flags]\n\n")
	for _, c := range commands {
		fmt.Fprintf(w, "  %-9s %s\n", c.name, c.about)
	}
	fmt.Fprintf(w, "  %-9s %s\n", "help", "print this, or the flags of a command: nearcall help COMMAND")
	fmt.Fprintf(w, "  %-9s %s\n", "-version", "print the version")
}

func (c command) help(w io.Writer) {
	flags, _ := c.flags()
	fmt.Fprintf(w, "nearcall %s: %s\n\nusage: nearcall %s [flags]\n\n", c.name, c.about, c.name)
	flags.SetOutput(w)
	flags.PrintDefaults()
}
