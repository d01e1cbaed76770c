package shm

import (
	"fmt"
	"strconv"
	"strings"
)

// trusts returns why a process of the user mine does not share memory with one
// of the user peers, as SO_PEERCRED has it. They are one user where the two
// numbers are equal, but for the overflow user: that is what the system calls
// each user of other namespaces that has no number in this process's, and all
// of them look alike.
func trusts(mine, peers uint32, read func(file string) ([]byte, error)) error {
	switch {
	case peers != mine:
		return fmt.Errorf("the peer is a process of user %d, this is one of user %d", peers, mine)
	case peers == overflowUser(read) && !seesAllUsers(read):
		return fmt.Errorf("the peer is a process of user %d, which stands for any user that this namespace does not know", peers)
	}
	return nil
}

// overflowUser returns the number of users that have none here.
func overflowUser(read func(string) ([]byte, error)) uint32 {
	const usual = 65534
	b, err := read("/proc/sys/kernel/overflowuid")
	if err != nil {
		return usual
	}
	uid, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil {
		return usual
	}
	return uint32(uid)
}

// seesAllUsers reports whether each user has a number of its own here, as in the
// namespace that a system begins with. What cannot be read says no.
func seesAllUsers(read func(string) ([]byte, error)) bool {
	b, err := read("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(b)), " ") == "0 0 4294967295"
}
