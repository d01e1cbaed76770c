// Command nearcall looks at services and calls them over any path of package nearcall, and
// measures what calls cost. nearcall help lists its commands.
//
// list, describe and call are grpcurl's commands, with its flags, for nearcall's targets as well.
// Flags take one dash or two.
//
// In a clone of the repository, go -C cmd/nearcall run . COMMAND runs it. A relative path in an
// argument then begins at cmd/nearcall.
//
// The exit code is 0, or 1 if something failed, also a write to stdout, 2 for a wrong command line,
// 64 plus the code of the status if a call failed with one, and 130 if the command was interrupted.
// nearcall health has the exit codes of grpc-health-probe. If stdout is a pipe that nobody reads,
// the command ends as others do, by SIGPIPE.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	_ "github.com/nearcall/nearcall/quic" // for quic: targets
)

func init() { cobra.MousetrapHelpText = "" } // or on Windows cobra would look for the process that started this one

func main() {
	if beTheProcess() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	os.Exit(run(ctx, os.Args[1:], stdio{os.Stdin, os.Stdout, os.Stderr}))
}

// stdio is the standard input and output of a command.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitStatus      = 64  // plus the code, as grpcurl exits
	exitInterrupted = 130 // as shells report a command that Ctrl-C ended

	// exits is the name of the annotation with a command's own exit codes.
	exits     = "exits"
	exitCodes = "Exit codes: 0 success, 1 failure, 2 wrong command line, 130 interrupted; if a call failed, 64 plus the\n" +
		"code of its status: 68 DeadlineExceeded, 76 Unimplemented, 78 Unavailable"
)

// A usageError is an error in the command line, such as a flag's value.
type usageError string

func (e usageError) Error() string { return string(e) }

// An exitError is an error with an exit code of its command's own.
type exitError struct {
	error
	code int
}

// run executes the command line and returns the exit code. Output that cannot be written is an
// error.
func run(ctx context.Context, args []string, std stdio) int {
	out, stderr := &sink{Writer: std.out}, &sink{Writer: std.err}
	begun := false
	root := &cobra.Command{
		Use: "nearcall", Short: "nearcall runs gRPC services over the nearest path between caller and callee.",
		Long: "nearcall runs gRPC services over the nearest path between caller and callee.\n\n" +
			"TARGET is unix:PATH, shm:PATH, tcp:HOST:PORT, ws://HOST:PORT/PATH or quic:HOST:PORT of a nearcall server,\n" +
			"or HOST:PORT, dns:///HOST:PORT or another target of grpc-go for any gRPC server. Flags take one dash or two.",
		Version: nearcall.Version, SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			err := c.ValidateFlagGroups()
			begun = err == nil
			return err
		},
	}
	root.SetIn(std.in)
	root.SetOut(out)
	root.SetErr(stderr)
	root.SetVersionTemplate(versionText(debug.ReadBuildInfo()))
	root.SetUsageTemplate(root.UsageTemplate() + fmt.Sprintf("\n{{or (index .Annotations %q) %q}}\n", exits, exitCodes))
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(listCommand(), describeCommand(), callCommand(), healthCommand(), resolveCommand(), proxyCommand(),
		topCommand(), tourCommand(), &cobra.Command{
			Use: "version", Short: "print the version, and the revision that it was built of", Args: cobra.NoArgs,
			Run: func(*cobra.Command, []string) { fmt.Fprint(out, versionText(debug.ReadBuildInfo())) },
		})
	long := longFlags(root, args)
	if last := len(args) - 1; last > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) && isBegunFlag(args[last]) {
		long[last] = "-" + args[last]
		out.Writer = oneDash{out.Writer}
	}
	root.SetArgs(long)
	c, err := root.ExecuteContextC(ctx)
	switch {
	case out.err != nil && (err == nil || errors.Is(err, out.err)):
		fmt.Fprintf(stderr, "nearcall: %v\n", out.err)
		return exitFailed
	case err != nil:
		return failed(ctx, c, err, begun, stderr)
	}
	return exitOK
}

// failed prints the error of a command and returns the exit code.
func failed(ctx context.Context, c *cobra.Command, err error, begun bool, stderr io.Writer) int {
	code := exitFailed
	if coded, ok := errors.AsType[exitError](err); ok {
		err, code = coded.error, coded.code
	}
	text := strings.TrimPrefix(err.Error(), "nearcall: ")
	_, misused := errors.AsType[usageError](err)
	switch st, ok := status.FromError(err); {
	case !begun, misused:
		text = strings.Join(strings.Fields(text), " ")
		switch {
		case begun:
		case c.HasParent():
			text = also(text, "usage: "+c.UseLine()+"; 'nearcall help "+c.Name()+"' lists the flags")
		default:
			if unknown, meant, ok := strings.Cut(text, " Did you mean this? "); ok { // cobra's words
				text = unknown + "; did you mean " + strings.ReplaceAll(meant, " ", " or ") + "?"
			} else {
				text += "; a command comes first, as in 'nearcall call -plaintext TARGET METHOD'"
			}
			text = also(text, "'nearcall help' lists the commands")
		}
		code = exitUsage
		if c.Name() == "health" {
			code = exitProbeMisused
		}
	case ctx.Err() != nil:
		text, code = "interrupted", exitInterrupted
	case ok:
		if code == exitFailed {
			if code = exitStatus + int(st.Code()); st.Code() > codes.Unauthenticated {
				code = exitStatus + int(codes.Unknown) // codes that gRPC does not define do not fit
			}
		}
		c, text = c.Root(), fmt.Sprintf("%s: %s", st.Code(), st.Message())
	}
	// The lines after the first are indented, so that a server's error cannot begin a line.
	fmt.Fprintf(stderr, "%s: %s\n", c.CommandPath(), inset(text))
	return code
}

// inset returns text with the lines after the first one indented.
func inset(text string) string {
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ")
}

// longFlags returns args with two dashes before long flags. Users of grpcurl write one
// dash.
func longFlags(root *cobra.Command, args []string) []string {
	known := map[string]bool{"help": true, "version": true}
	for _, c := range root.Commands() {
		c.Flags().VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
	}
	var all []string
	for i, arg := range args {
		if arg == "--" {
			return append(all, args[i:]...)
		}
		word, _, _ := strings.Cut(arg, "=")
		if name, ok := strings.CutPrefix(word, "-"); ok && known[name] {
			arg = "-" + arg
		}
		all = append(all, arg)
	}
	return all
}

// isBegunFlag reports whether word is the beginning of a long flag with one dash.
func isBegunFlag(word string) bool {
	return len(word) > 1 && word[0] == '-' && word[1] != '-' && !strings.Contains(word, "=") && !slices.Contains([]string{"-d", "-h", "-H", "-v"}, word)
}

// oneDash writes the completions of such a flag, each with one dash. Cobra writes them one by one.
type oneDash struct{ io.Writer }

func (o oneDash) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte("--")) {
		n, err := o.Writer.Write(b[1:])
		return n + 1, err
	}
	return o.Writer.Write(b)
}

// flagError returns an error of pflag, with a suggestion if there is no such flag. Pflag would name
// the first letter of one that has a single dash.
func flagError(c *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return err
	}
	flag, _, _ := strings.Cut("-"+unknown.GetSpecifiedShortnames(), "=")
	if unknown.GetSpecifiedShortnames() == "" {
		flag = "-" + unknown.GetSpecifiedName()
	}
	if flag == "-unix" { // of grpcurl
		return errors.New("unknown flag -unix; write the target as unix:PATH")
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "-"+f.Name) })
	return errors.New("unknown flag " + flag + didYouMean(flag, names))
}

// also returns text and more, which are two parts of a message.
func also(text, more string) string {
	if strings.HasSuffix(text, "?") {
		return text + " " + more
	}
	return text + "; " + more
}

// versionText returns the version, and that of the module, which has the revision.
func versionText(info *debug.BuildInfo, ok bool) string {
	text := fmt.Sprintf("nearcall %s (%s, %s/%s)\n", nearcall.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		text += fmt.Sprintf("module %s %s\n", info.Main.Path, info.Main.Version)
	}
	return text
}
