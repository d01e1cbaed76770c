package shm

import (
	"io/fs"
	"strings"
	"testing"
)

// TestWhoIsTheSameUser: two processes of one user share memory, and those of two users that
// only look the same do not.
func TestWhoIsTheSameUser(t *testing.T) {
	const (
		usual    = "65534\n"
		all      = "         0          0 4294967295\n"
		one      = "      1000       1000          1\n"
		none     = "" // before a map was written
		shifted  = "         0     100000      65536\n"
		inPieces = "0 0 1000\n1000 1000 4294966295\n"
		missing  = "missing"
	)
	for name, test := range map[string]struct {
		mine, peers    uint32
		overflow, seen string
		why            string // empty if they are trusted
	}{
		"one user":                                  {1000, 1000, usual, all, ""},
		"root":                                      {0, 0, usual, all, ""},
		"two users":                                 {1000, 1001, usual, all, "the peer is a process of user 1001, this is one of user 1000"},
		"one user, in a container":                  {1000, 1000, usual, shifted, ""},
		"a user with a large number":                {4294967294, 4294967294, usual, all, ""},
		"nobody, where all users are known":         {65534, 65534, usual, all, ""},
		"nobody, in a container":                    {65534, 65534, usual, shifted, "any user"},
		"nobody, where one user is known":           {65534, 65534, usual, one, "any user"},
		"nobody, where no user is known":            {65534, 65534, usual, none, "any user"},
		"nobody, where users come in pieces":        {65534, 65534, usual, inPieces, "any user"}, // all users are mapped, but that is not recognised
		"nobody, where it cannot be told who is":    {65534, 65534, usual, missing, "any user"},
		"another number for nobody":                 {1000, 1000, "1000\n", shifted, "any user"},
		"another number for nobody, not theirs":     {65534, 65534, "1000\n", shifted, ""},
		"nobody, where its number cannot be told":   {65534, 65534, missing, shifted, "any user"},
		"somebody, where that number is not to see": {1000, 1000, missing, missing, ""},
		"nobody, where its number is no number":     {65534, 65534, "?", shifted, "any user"},
	} {
		read := func(file string) ([]byte, error) {
			s, ok := map[string]string{"/proc/sys/kernel/overflowuid": test.overflow, "/proc/self/uid_map": test.seen}[file]
			if !ok || s == missing {
				return nil, fs.ErrNotExist
			}
			return []byte(s), nil
		}
		err := trusts(test.mine, test.peers, func() (uint32, bool) { return unknownUser(read) })
		if (err != nil) != (test.why != "") || err != nil && !strings.Contains(err.Error(), test.why) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
