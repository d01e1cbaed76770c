package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// sources finds grpc-go in the module cache, and downloads it if necessary.
func sources(ctx context.Context) (src source, err error) {
	const module = "google.golang.org/grpc"
	if _, err := command(ctx, ".", "go", "mod", "download", module); err != nil {
		return src, err
	}
	if src.grpc, err = command(ctx, ".", "go", "list", "-m", "-f", "{{.Dir}}", module); err != nil {
		return src, err
	}
	if src.nearcall, err = command(ctx, ".", "go", "list", "-m", "-f", "{{.Dir}}", "github.com/nearcall/nearcall"); err != nil {
		return src, err
	}
	root, err := command(ctx, ".", "go", "env", "GOROOT")
	src.std = filepath.Join(root, "src")
	return src, err
}

// workspace returns an empty folder. A checkout always gets the same folder, so that runs
// share the build cache.
func workspace(checkout string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	h := fnv.New32()
	_, _ = io.WriteString(h, checkout)
	dir := filepath.Join(cache, "nearcall", fmt.Sprintf("grpc-tests-%08x", h.Sum32()))
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, errors.Join(os.MkdirAll(filepath.Join(dir, "logs"), 0o777), os.MkdirAll(filepath.Join(dir, "bin"), 0o777))
}

// buildTests builds the test binaries of packages into bin, without debug information.
func buildTests(ctx context.Context, bin, dir string, packages []string, race bool) (map[string]string, error) {
	args := []string{"test", "-c", "-mod=mod", "-ldflags=-s -w", "-o", bin + string(filepath.Separator)}
	if race {
		args = append(args, "-race")
	}
	binaries := make(map[string]string)
	for _, p := range suites {
		if slices.Contains(packages, p.name) {
			binaries[p.name] = filepath.Join(bin, path.Base(p.to)+".test")
			args = append(args, "./"+p.to)
		}
	}
	_, err := command(ctx, dir, "go", args...)
	return binaries, err
}

// command runs a command and returns its stdout without surrounding space. The error
// includes its stderr.
func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, complaint.String())
	}
	return strings.TrimSpace(string(out)), nil
}
