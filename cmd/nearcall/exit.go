package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitStatus      = 64  // plus the code, as grpcurl exits
	exitInterrupted = 130 // as shells report a command that Ctrl-C ended
)

// exitCodes are the exit codes, as help prints them.
const exitCodes = "exit codes: 0 success, 1 failure, 2 wrong command line, 130 interrupted; if a call failed, 64 plus the\n" +
	"code of its status: 68 DeadlineExceeded, 76 Unimplemented, 78 Unavailable\n"

// A usageError is an error in the command line, such as a flag's value.
type usageError string

func (e usageError) Error() string { return string(e) }

func misused(stderr io.Writer, format string, args ...any) int {
	fmt.Fprintf(stderr, format+"\n", args...)
	return exitUsage
}

// misused reports a wrong use of the command, and returns the exit code.
func (c command) misused(stderr io.Writer, format string, args ...any) int {
	return cmp.Or(c.misuse, misused(stderr, "nearcall "+c.name+": "+format, args...))
}

// An exitError is an error with an exit code of its command's own.
type exitError struct {
	error
	code int
}

// A failedCall is the status with which a call ended, and its details in JSON.
type failedCall struct {
	*status.Status
	details []string
}

func (e *failedCall) Error() string              { return e.Err().Error() }
func (e *failedCall) GRPCStatus() *status.Status { return e.Status }

// exit prints the error of a command and returns the exit code.
func (c command) exit(ctx context.Context, err error, stderr io.Writer) int {
	var bad usageError
	switch {
	case err == nil:
		return exitOK
	case ctx.Err() != nil:
		fmt.Fprintf(stderr, "nearcall %s: interrupted\n", c.name)
		return exitInterrupted
	case errors.As(err, &bad):
		return c.misused(stderr, "%v", err)
	}
	if coded, ok := errors.AsType[exitError](err); ok {
		c.print(coded.error, stderr)
		return coded.code
	}
	return c.print(err, stderr)
}

// print prints an error and returns the exit code of most commands for it.
func (c command) print(err error, stderr io.Writer) int {
	st, ok := status.FromError(err)
	if !ok {
		fmt.Fprintf(stderr, "nearcall %s: %s\n", c.name, inset(strings.TrimPrefix(err.Error(), "nearcall: ")))
		return exitFailed
	}
	fmt.Fprintf(stderr, "nearcall: %s: %s\n", st.Code(), inset(st.Message()))
	var failed *failedCall
	if errors.As(err, &failed) {
		for _, detail := range failed.details {
			fmt.Fprintln(stderr, detail)
		}
	}
	if st.Code() > codes.Unauthenticated {
		return exitStatus + int(codes.Unknown) // codes that gRPC does not define do not fit
	}
	return exitStatus + int(st.Code())
}

// inset returns text with the lines after the first one indented, so that a server's error cannot
// begin a line.
func inset(text string) string { return strings.ReplaceAll(text, "\n", "\n    ") }
