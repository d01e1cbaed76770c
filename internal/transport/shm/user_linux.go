package shm

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/nearcall/nearcall/internal/counters"
)

// trusts returns an error unless this process may share memory with the peer's. mine is the user
// of this process, and peers is the user of the peer's process, as SO_PEERCRED numbers users: the
// two must be equal. unknown returns the overflow user: see unknownUser.
func trusts(mine, peers uint32, unknown func() (user uint32, ok bool)) error {
	if peers != mine {
		return counters.OtherUser.New(fmt.Sprintf("the peer is a process of user %d, this is one of user %d", peers, mine))
	}
	if user, ok := unknown(); ok && peers == user {
		return counters.OtherUser.New(fmt.Sprintf("the peer is a process of user %d, which stands for any user that this namespace does not know", peers))
	}
	return nil
}

// unknownUser returns the number that stands for all users that have no number in this namespace.
// ok is false if this namespace maps every user, as the initial one does: then that number is an
// ordinary user. If the system does not tell, there may be such users.
func unknownUser(read func(file string) ([]byte, error)) (user uint32, ok bool) {
	const usual = 65534
	if b, err := read("/proc/self/uid_map"); err == nil && strings.Join(strings.Fields(string(b)), " ") == "0 0 4294967295" {
		return 0, false
	}
	b, _ := read("/proc/sys/kernel/overflowuid")
	uid, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil {
		return usual, true
	}
	return uint32(uid), true
}

// unknownOnce reads the files once. An offer costs a client little, and reading them would be a
// fifth of what the offer costs the server.
var unknownOnce = sync.OnceValues(func() (uint32, bool) { return unknownUser(os.ReadFile) })
