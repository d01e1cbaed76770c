package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A wine runs Windows programs.
type wine struct {
	program string // wine itself
	server  string // wineserver, which all programs of a prefix share
	prefix  string
	version string
}

//go:embed bcryptprimitives/bcryptprimitives.c
var bcryptprimitives []byte

const install = "install it (Debian: apt-get install wine64 gcc-mingw-w64-x86-64)"

// open finds Wine, and creates the prefix if it is missing.
func open(ctx context.Context, prefix string) (*wine, error) {
	w := new(wine)
	var err error
	// Debian's wine is a script that complains about missing 32-bit support, and Debian's
	// Wine programs are not in PATH.
	if w.program, err = find("wine64", "/usr/lib/wine/wine64", "wine"); err != nil {
		return nil, err
	}
	if w.server, err = find("wineserver64", "/usr/lib/wine/wineserver64", "wineserver"); err != nil {
		return nil, err
	}
	if w.prefix, err = filepath.Abs(prefix); err != nil {
		return nil, err
	}
	version, err := w.command(ctx, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w", w.program, err)
	}
	w.version = strings.TrimSpace(string(version))
	if err := w.setUp(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("making %s: %w", w.prefix, err), w.close())
	}
	return w, nil
}

// find returns the first of programs that exists.
func find(programs ...string) (string, error) {
	for _, p := range programs {
		if path, err := exec.LookPath(p); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("there is no %s; %s", programs[0], install)
}

// setUp creates the prefix, unless it is complete and of this version. An incomplete one is
// created again.
func (w *wine) setUp(ctx context.Context) error {
	done := filepath.Join(w.prefix, "complete")
	if made, err := os.ReadFile(done); err == nil && string(made) == w.version {
		return nil
	}
	if err := os.RemoveAll(w.prefix); err != nil {
		return err
	}
	if err := os.MkdirAll(w.prefix, 0o777); err != nil {
		return err
	}
	boot := w.command(ctx, "wineboot", "--init")
	if out, err := boot.CombinedOutput(); err != nil {
		return fmt.Errorf("wineboot: %w\n%s", err, out)
	}
	system := filepath.Join(w.prefix, "drive_c", "windows", "system32")
	dll := filepath.Join(system, "bcryptprimitives.dll")
	if _, err := os.Stat(dll); err != nil {
		if err := w.buildDLL(ctx, dll); err != nil {
			return err
		}
	}
	return os.WriteFile(done, []byte(w.version), 0o666)
}

// buildDLL builds bcryptprimitives.dll, which Go needs and older versions of Wine lack.
func (w *wine) buildDLL(ctx context.Context, dll string) error {
	compiler, err := find("x86_64-w64-mingw32-gcc")
	if err != nil {
		return err
	}
	cc := exec.CommandContext(ctx, compiler, "-shared", "-O2", "-Wall", "-Werror", "-o", dll, "-x", "c", "-", "-ladvapi32")
	cc.Stdin = strings.NewReader(string(bcryptprimitives))
	if out, err := cc.CombinedOutput(); err != nil {
		return fmt.Errorf("building bcryptprimitives.dll: %w\n%s", err, out)
	}
	return nil
}

// environment returns the variables that make Wine use this prefix, without opening windows
// or adding entries to the user's menus.
func (w *wine) environment() []string {
	return []string{
		"WINEPREFIX=" + w.prefix, "WINEARCH=win64", "WINEDEBUG=-all",
		"WINEDLLOVERRIDES=mscoree=;mshtml=;winemenubuilder.exe=", "DISPLAY=",
	}
}

func (w *wine) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, w.program, args...)
	cmd.Env = append(os.Environ(), w.environment()...)
	return cmd
}

// serve starts a server that stays until close. By default the server leaves some seconds
// after the last program, and one that starts in that moment loses its connection.
func (w *wine) serve(ctx context.Context) error {
	if err := w.close(); err != nil { // of setUp
		return err
	}
	cmd := exec.CommandContext(ctx, w.server, "-p")
	cmd.Env = append(os.Environ(), w.environment()...)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("wineserver -p: %w", err)
	}
	// The first program starts Wine's services, which keep its output open.
	if err := w.command(ctx, "wineboot").Run(); err != nil {
		return fmt.Errorf("wineboot: %w", err)
	}
	return nil
}

// close ends all programs of the prefix and the server that they share, and waits for them.
func (w *wine) close() error {
	for _, arg := range []string{"-k", "-w"} {
		cmd := exec.Command(w.server, arg)
		cmd.Env = append(os.Environ(), w.environment()...)
		// The first fails if none is running.
		if err := cmd.Run(); err != nil && arg == "-w" {
			return fmt.Errorf("wineserver %s: %w", arg, err)
		}
	}
	return nil
}
