package shm

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/nearcall/nearcall/internal/counters"
)

// readOnce returns the contents of a system file, and reads it only once. An offer costs a client
// little, and reading the file would be a fifth of what the offer costs the server.
func readOnce(file string) ([]byte, error) {
	read, _ := onceRead.LoadOrStore(file, sync.OnceValues(func() ([]byte, error) { return os.ReadFile(file) }))
	return read.(func() ([]byte, error))()
}

var onceRead sync.Map // from file to func() ([]byte, error)

// trusts returns an error unless this process may share memory with the peer's. mine is the user
// of this process, and peers is the user of the peer's process, as SO_PEERCRED numbers users: the
// two must be equal. The overflow user never matches, because its number stands for all users that
// have no number in this namespace. But if this namespace maps all users, the overflow user is an
// ordinary one.
func trusts(mine, peers uint32, read func(file string) ([]byte, error)) error {
	switch {
	case peers != mine:
		return counters.OtherUser.New(fmt.Sprintf("the peer is a process of user %d, this is one of user %d", peers, mine))
	case peers == overflowUser(read) && !seesAllUsers(read):
		return counters.OtherUser.New(fmt.Sprintf("the peer is a process of user %d, which stands for any user that this namespace does not know", peers))
	}
	return nil
}

// overflowUser returns the number that stands for users that this namespace does not map.
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

// seesAllUsers reports whether this namespace maps every user, as the initial one does. It
// returns false if the system does not tell.
func seesAllUsers(read func(string) ([]byte, error)) bool {
	b, err := read("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(b)), " ") == "0 0 4294967295"
}
