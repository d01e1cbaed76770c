// Command nearcall looks at services and calls them over any path of package nearcall, and
// measures what calls cost.
//
//	nearcall list TARGET [SERVICE]             list the services of a server, or the methods of one
//	nearcall describe TARGET [SYMBOL]          print services, messages and enums as proto source
//	nearcall call TARGET [METHOD] [JSON ...]   call a method with messages in JSON
//	nearcall health TARGET [SERVICE]           ask a server, or one of its services, whether it serves
//	nearcall resolve TARGET                    print the endpoints of a target, and the path that calls take to each
//	nearcall proxy LISTEN TARGET               pass calls on to TARGET from nearcall's and other gRPC clients on LISTEN
//	nearcall top TARGET                        show what calls a server gets, by method, each second
//	nearcall tour                              call one service by every path and compare with gRPC
//	nearcall completion bash|zsh|fish          print a completion script for a shell
//	nearcall version                           print the version, and the revision that it was built of
//	nearcall help [COMMAND]                    list the commands, or the flags of one
//
// TARGET is what nearcall.NewClient takes: unix:PATH, shm:PATH, tcp:HOST:PORT, ws://HOST:PORT/PATH
// and quic:HOST:PORT for servers of nearcall, and HOST:PORT, dns:///HOST:PORT or grpc:TARGET for
// these and ordinary gRPC servers. The server must have gRPC's server reflection, or list, describe and call take its
// services from the files of -proto or -protoset.
//
// In a clone of the repository, go -C cmd/nearcall run . COMMAND runs it. A relative path in an
// argument then begins at cmd/nearcall.
//
// The exit code is 0, or 1 if something failed, also a write to stdout, 2 for a wrong command line,
// 64 plus the code of the status if a call failed with one, and 130 if the command was interrupted.
// Those of nearcall health are grpc-health-probe's. If stdout is a pipe that nobody reads, the
// command ends as others do, by SIGPIPE.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	_ "github.com/nearcall/nearcall/quic" // for quic: targets
)

func main() {
	if beTheProcess() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	os.Exit(run(ctx, os.Args[1:], stdio{os.Stdin, os.Stdout, os.Stderr}))
}

// stdio is what a command reads and writes.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

// A command is a command that the first argument selects.
type command struct {
	name, args, about string
	more              string // what help adds to the flags
	exits             string // the exit codes, as help prints them; "" for those of most commands
	misuse            int    // the exit code for a wrong command line; 0 for exitUsage
	least, most       int    // how many arguments it takes besides flags
	setup             func(*flag.FlagSet) job
}

// A job is one use of a command. Its functions are called after the command's flags are parsed.
type job struct {
	// do executes the command. It returns when ctx is done.
	do func(ctx context.Context, args []string, std stdio) error

	// complete returns what could follow args. It is nil if nothing can.
	complete func(ctx context.Context, args []string, begun string) []string
}

var commands = []command{listCommand, describeCommand, callCommand, healthCommand, resolveCommand, proxyCommand, topCommand, tourCommand, completionCommand, versionCommand}

// run executes the command line and returns the exit code. Output that cannot be written is an
// error.
func run(ctx context.Context, args []string, std stdio) int {
	out := &sink{Writer: std.out}
	std.out, std.err = out, &sink{Writer: std.err}
	code := dispatch(ctx, args, std)
	if code == exitOK && out.err != nil {
		fmt.Fprintf(std.err, "nearcall: %v\n", out.err)
		return exitFailed
	}
	return code
}

// dispatch executes the command that the first argument names.
func dispatch(ctx context.Context, args []string, std stdio) int {
	top := flag.NewFlagSet("nearcall", flag.ContinueOnError)
	top.SetOutput(io.Discard)
	version := top.Bool("version", false, "print the version")
	switch err := top.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return help(nil, std)
	case err != nil:
		return misused(std.err, "nearcall: %v; 'nearcall help' lists what there is", err)
	case *version:
		return versionCommand.run(ctx, nil, std)
	case top.NArg() == 0:
		usage(std.err)
		return exitUsage
	}
	name, args := top.Arg(0), top.Args()[1:]
	switch name {
	case "help":
		return help(args, std)
	case completeName:
		complete(ctx, args, std.out)
		return exitOK
	}
	c, ok := find(name)
	if !ok {
		return unknown(std.err, name)
	}
	return c.run(ctx, args, std)
}

func (c command) run(ctx context.Context, args []string, std stdio) int {
	flags, job := c.flags()
	rest, err := parse(flags, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		c.help(std.out)
		return exitOK
	case err != nil:
		return c.misused(std.err, "%v%s; 'nearcall help %s' lists the flags", err, meantFlag(flags, err), c.name)
	case len(rest) < c.least:
		return c.misused(std.err, "too few arguments; usage: %s", c.usage())
	case len(rest) > c.most && c.most == 0:
		return c.misused(std.err, "unexpected argument %q; it takes flags only", rest[0])
	case len(rest) > c.most:
		return c.misused(std.err, "unexpected argument %q; usage: %s", rest[c.most], c.usage())
	}
	return c.exit(ctx, job.do(ctx, rest, std), std.err)
}

// flags returns new flags of the command, and the job that they configure.
func (c command) flags() (*flag.FlagSet, job) {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return flags, c.setup(flags)
}

func find(name string) (command, bool) {
	for _, c := range commands {
		if c.name == name {
			return c, true
		}
	}
	return command{}, false
}

func unknown(stderr io.Writer, name string) int {
	var names []string
	for _, c := range commands {
		names = append(names, c.name)
	}
	return misused(stderr, "nearcall: there is no command %q%s; 'nearcall help' lists what there is", name, didYouMean(name, names))
}

func help(args []string, std stdio) int {
	if len(args) == 0 {
		usage(std.out)
		return exitOK
	}
	c, ok := find(args[0])
	if !ok {
		return unknown(std.err, args[0])
	}
	c.help(std.out)
	return exitOK
}

func usage(w io.Writer) {
	fmt.Fprint(w, "nearcall runs gRPC services over the nearest path between caller and callee.\n\n"+
		"usage: nearcall COMMAND [flags] [arguments]\n\n")
	for _, c := range commands {
		fmt.Fprintf(w, "  %-11s %s\n", c.name, c.about)
	}
	fmt.Fprintf(w, "  %-11s %s\n", "help", "print this, or the flags of a command: nearcall help COMMAND")
	fmt.Fprint(w, "\nTARGET is unix:PATH, shm:PATH, tcp:HOST:PORT, ws://HOST:PORT/PATH or quic:HOST:PORT of a nearcall server,\n"+
		"or HOST:PORT, dns:///HOST:PORT or another target of grpc-go for any gRPC server. A server without reflection needs -proto or -protoset.\n\n"+exitCodes)
}

func (c command) usage() string {
	s := "nearcall " + c.name
	if flags, _ := c.flags(); hasFlags(flags) {
		s += " [flags]"
	}
	if c.args != "" {
		s += " " + c.args
	}
	return s
}

func hasFlags(flags *flag.FlagSet) (has bool) {
	flags.VisitAll(func(*flag.Flag) { has = true })
	return has
}

func (c command) help(w io.Writer) {
	flags, _ := c.flags()
	fmt.Fprintf(w, "nearcall %s: %s\n\nusage: %s\n", c.name, c.about, c.usage())
	if hasFlags(flags) {
		fmt.Fprintln(w)
		flags.SetOutput(w)
		flags.PrintDefaults()
	}
	if c.more != "" {
		fmt.Fprintf(w, "\n%s", c.more)
	}
	fmt.Fprint(w, "\n"+cmp.Or(c.exits, exitCodes))
}
