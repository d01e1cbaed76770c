//go:build !unix

package socketfile

import (
	"fmt"
	"net"
	"runtime"
)

func bindWith(string, Options) (*net.UnixListener, error) {
	return nil, fmt.Errorf("%s has no mode and no owner of a socket file; leave the options out", runtime.GOOS)
}
