package socketfile

import (
	"errors"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/windows"
)

// errRefused is the error of connecting where nobody listens. On Windows no error
// of the system is one of package syscall's.
const errRefused = windows.WSAECONNREFUSED

// Supported returns an error that says what to do if the system has no unix sockets, as
// Windows before version 10 1803 and some versions of Wine.
var Supported = sync.OnceValue(func() error {
	conn, err := net.Dial("unix", os.DevNull) // is no socket
	if err == nil {
		_ = conn.Close()
	}
	if errors.Is(err, windows.WSAEAFNOSUPPORT) {
		return errors.New("this system has no unix sockets; use tcp:localhost:PORT")
	}
	return nil
})
