package main

import (
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/durations"
)

// parse parses flags before, between and after other arguments, and returns the other arguments.
// Arguments after -- are not flags.
func parse(flags *flag.FlagSet, args []string) (rest []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		left := flags.Args()
		parsed := len(args) - len(left)
		if len(left) == 0 || parsed > 0 && args[parsed-1] == "--" {
			return append(rest, left...), nil
		}
		rest, args = append(rest, left[0]), left[1:]
	}
}

// meantFlag suggests a flag if err, an error of Parse, is that there is no such flag.
func meantFlag(flags *flag.FlagSet, err error) string {
	_, name, ok := strings.Cut(err.Error(), "not defined: ")
	if !ok {
		return ""
	}
	var names []string
	flags.VisitAll(func(f *flag.Flag) { names = append(names, "-"+f.Name) })
	return didYouMean(name, names)
}

// headers is the value of -H, which can be repeated.
type headers metadata.MD

// String implements [flag.Value].
func (h headers) String() string { return "" }

// Set implements [flag.Value].
func (h headers) Set(s string) error {
	name, value, ok := strings.Cut(s, ":")
	name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
	if !ok || name == "" {
		return errors.New("write 'name: value'")
	}
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
		return fmt.Errorf("the name %q has characters besides letters, digits and any of . - _", name)
	}
	if strings.HasSuffix(name, "-bin") {
		decoded, err := fromBase64(value)
		if err != nil {
			return fmt.Errorf("the value of a name that ends in -bin is base64: %w", err)
		}
		value = string(decoded)
	}
	metadata.MD(h).Append(name, value)
	return nil
}

// A pathList is the value of a flag that takes a path and can be repeated.
type pathList []string

// String implements [flag.Value].
func (p *pathList) String() string { return "" }

// Set implements [flag.Value].
func (p *pathList) Set(s string) error {
	*p = append(*p, s)
	return nil
}

// flags returns the flags with the name that set p.
func (p pathList) flags(name string) string {
	var b strings.Builder
	for _, path := range p {
		fmt.Fprintf(&b, "%s %s ", name, path)
	}
	return b.String()
}

// fromBase64 decodes either alphabet, with or without padding.
func fromBase64(s string) ([]byte, error) {
	s = strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(s, "="))
	return base64.RawStdEncoding.DecodeString(s)
}

// seconds is the value of a flag that takes a time: a number of seconds, as for curl, or a
// duration as Go writes it, such as 500ms.
type seconds time.Duration

// String implements [flag.Value].
func (s *seconds) String() string {
	if s == nil || *s == 0 {
		return ""
	}
	return time.Duration(*s).String()
}

// Set implements [flag.Value].
func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if n, plain := strconv.ParseFloat(text, 64); plain == nil {
		d, err = durations.Of(n*float64(time.Second)), nil
	}
	if err != nil || d <= 0 {
		return errors.New("write a number of seconds above 0, or a time such as 500ms")
	}
	*s = seconds(d)
	return nil
}
