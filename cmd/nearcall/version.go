package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/nearcall/nearcall"
)

var versionCommand = command{name: "version", about: "print the version", setup: versionJob}

func versionJob(*flag.FlagSet) job {
	return job{do: func(_ context.Context, _ []string, std stdio) error {
		info, _ := debug.ReadBuildInfo()
		printVersion(std.out, info)
		return nil
	}}
}

// printVersion prints the version, and what info, which can be nil, tells about the build.
func printVersion(w io.Writer, info *debug.BuildInfo) {
	fmt.Fprintf(w, "nearcall %s (%s, %s/%s)\n", nearcall.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if info == nil {
		return
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		fmt.Fprintf(w, "module %s %s\n", info.Main.Path, v)
	}
	vcs := make(map[string]string)
	for _, s := range info.Settings {
		vcs[s.Key] = s.Value
	}
	if revision := vcs["vcs.revision"]; revision != "" {
		changed := ""
		if vcs["vcs.modified"] == "true" {
			changed = ", with changes"
		}
		fmt.Fprintf(w, "revision %s of %s%s\n", revision, vcs["vcs.time"], changed)
	}
}
