package socketfile

import (
	"errors"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/windows"
)

// errRefused is the error of connecting to a socket that no server listens on. On Windows it
// differs from the ECONNREFUSED of package syscall.
const errRefused = windows.WSAECONNREFUSED

// Supported returns an error that says what to do if the system has no unix sockets.
// Windows before version 10 1803 and some versions of Wine have none.
var Supported = sync.OnceValue(func() error {
	conn, err := net.Dial("unix", os.DevNull) // never a socket
	if err == nil {
		_ = conn.Close()
	}
	if errors.Is(err, windows.WSAEAFNOSUPPORT) {
		return errors.New("this system has no unix sockets; use tcp:localhost:PORT")
	}
	return nil
})

func bindWith(string, Options) (*net.UnixListener, error) {
	return nil, errors.New("windows has no mode and no owner of a socket file; leave the options out")
}
