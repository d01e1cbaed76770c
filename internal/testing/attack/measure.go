//go:build linux

package attack

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cpuTime returns the processor time that a process has used.
func cpuTime(pid int) (time.Duration, error) {
	// The other process's CPU clock, with the id that clock_getcpuclockid(3) computes.
	const sched = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|sched, &t); err != nil {
		return 0, fmt.Errorf("the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// runnable reports whether a thread of a process is running or ready to run.
func runnable(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, t := range threads {
		stat, err := os.ReadFile(t) // the thread may have ended
		if _, rest, found := bytes.Cut(stat, []byte(") ")); err == nil && found && rest[0] == 'R' {
			return true
		}
	}
	return false
}

// A footprint is what a process uses at one moment.
type footprint struct {
	memory      int64 // resident bytes, with the pages of shared memory that it has touched
	touched     int64 // bytes of those pages
	descriptors int
	threads     int
}

// memoryOf reads the resident memory of a process, and the number of its threads.
func memoryOf(pid int) (f footprint, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return f, err
	}
	for line := range bytes.Lines(status) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch string(name) {
		case "VmRSS":
			f.memory, err = kilobytes(value)
		case "RssShmem":
			f.touched, err = kilobytes(value)
		case "Threads":
			f.threads, err = strconv.Atoi(strings.TrimSpace(string(value)))
		}
		if err != nil {
			return f, fmt.Errorf("/proc/%d/status: %w", pid, err)
		}
	}
	return f, nil
}

// kilobytes reads a value of /proc/PID/status, as bytes.
func kilobytes(value []byte) (int64, error) {
	kb, _, _ := strings.Cut(strings.TrimSpace(string(value)), " ")
	n, err := strconv.ParseInt(kb, 10, 64)
	return n << 10, err
}

// private returns the bytes that are not shared.
func (f footprint) private() int64 { return f.memory - f.touched }

// descriptorsOf counts the descriptors of a process.
func descriptorsOf(pid int) int {
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0
	}
	return len(fds)
}

// memoryFiles returns the allocated size of each memfd that a process has open, in bytes,
// by inode. pid is its number, or "self".
func memoryFiles(pid string) (map[uint64]int64, error) {
	files := make(map[uint64]int64)
	dir := filepath.Join("/proc", pid, "fd")
	fds, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, fd := range fds {
		path := filepath.Join(dir, fd.Name())
		if to, err := os.Readlink(path); err != nil || !strings.HasPrefix(to, "/memfd:") {
			continue
		}
		var st syscall.Stat_t
		if err := syscall.Stat(path, &st); err == nil {
			files[st.Ino] = st.Blocks * 512
		}
	}
	return files, nil
}

func sum(files map[uint64]int64) (n int64) {
	for _, bytes := range files {
		n += bytes
	}
	return n
}

// sharedMemory returns the bytes of memfds that this process keeps allocated, whichever
// process wrote them: those that it has mapped, and those that it has open. Its resident
// memory is less, as that leaves out pages that this process has not touched.
func sharedMemory() (int64, error) {
	files, err := memoryFiles("self")
	if err != nil {
		return 0, err
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
	for inode, n := range mapped {
		files[inode] = max(files[inode], n)
	}
	return sum(files), nil
}

// existing parses a line of /proc/self/maps. It returns the file's inode and how many of
// the mapped bytes are allocated, which is 0 if the mapping has gone.
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

// percentile returns the value at p percent of sorted, or 0 if it is empty.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)-1)*p/100]
}
