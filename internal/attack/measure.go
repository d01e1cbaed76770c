//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cpuTime returns the processor time that a process has used.
func cpuTime(pid int) (time.Duration, error) {
	// The clock of another process, as clock_getcpuclockid(3) makes it.
	const sched = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|sched, &t); err != nil {
		return 0, fmt.Errorf("the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// A footprint is what a process has at a moment.
type footprint struct {
	memory      int64 // in bytes: resident, pages of shared memory that it has touched included
	descriptors int
	threads     int
}

// memoryOf reads what of a process is resident, in bytes, and its threads.
func memoryOf(pid int) (f footprint, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return f, err
	}
	for line := range bytes.Lines(status) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch string(name) {
		case "VmRSS":
			kb, _, _ := strings.Cut(strings.TrimSpace(string(value)), " ")
			n, err := strconv.ParseInt(kb, 10, 64)
			if err != nil {
				return f, err
			}
			f.memory = n << 10
		case "Threads":
			if f.threads, err = strconv.Atoi(strings.TrimSpace(string(value))); err != nil {
				return f, err
			}
		}
	}
	return f, nil
}

// descriptorsOf counts the descriptors of a process.
func descriptorsOf(pid int) int {
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0
	}
	return len(fds)
}

// sharedMemory returns how many bytes of memory files this process keeps in
// existence, whoever wrote them: those that it has mapped, and those that it has
// descriptors of. What is resident says less, as it leaves out pages that this
// process did not touch.
func sharedMemory() (int64, error) {
	files := make(map[uint64]int64) // by inode
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, err
	}
	for _, fd := range fds {
		path := filepath.Join("/proc/self/fd", fd.Name())
		if to, err := os.Readlink(path); err != nil || !strings.HasPrefix(to, "/memfd:") {
			continue
		}
		var st syscall.Stat_t
		if err := syscall.Stat(path, &st); err == nil {
			files[st.Ino] = st.Blocks * 512
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, err
	}
	mapped := make(map[uint64]int64)
	for line := range strings.Lines(string(maps)) {
		if !strings.Contains(line, " /memfd:") {
			continue
		}
		inode, n, err := existing(line)
		if err != nil {
			return 0, err
		}
		mapped[inode] += n
	}
	var sum int64
	for inode, n := range mapped {
		files[inode] = max(files[inode], n)
	}
	for _, n := range files {
		sum += n
	}
	return sum, nil
}

// existing reads a line of /proc/self/maps. It returns the file's inode and how
// many bytes of what is mapped exist, 0 where the mapping has gone meanwhile.
func existing(line string) (inode uint64, n int64, err error) {
	fields := strings.Fields(line) // from-to, permissions, offset, device, inode, path
	if len(fields) < 6 {
		return 0, 0, fmt.Errorf("a line of /proc/self/maps: %q", line)
	}
	var from, to uintptr
	if _, err := fmt.Sscanf(fields[0], "%x-%x", &from, &to); err != nil {
		return 0, 0, fmt.Errorf("a line of /proc/self/maps: %q: %w", line, err)
	}
	if inode, err = strconv.ParseUint(fields[4], 10, 64); err != nil {
		return 0, 0, fmt.Errorf("a line of /proc/self/maps: %q: %w", line, err)
	}
	page := uintptr(os.Getpagesize())
	in := make([]byte, (to-from)/page)
	if _, _, errno := syscall.Syscall(syscall.SYS_MINCORE, from, to-from, uintptr(unsafe.Pointer(&in[0]))); errno != 0 {
		if errors.Is(errno, syscall.ENOMEM) {
			return inode, 0, nil
		}
		return 0, 0, fmt.Errorf("mincore: %w", errno)
	}
	for _, b := range in {
		n += int64(b & 1)
	}
	return inode, n * int64(page), nil
}

// percentile returns the smallest value that p of 100 are not above, 0 where
// there are none.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)-1)*p/100]
}

// sortedCopy leaves d as it is.
func sortedCopy(d []time.Duration) []time.Duration {
	d = slices.Clone(d)
	slices.Sort(d)
	return d
}
