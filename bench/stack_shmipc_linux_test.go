package main

import (
	"net"
	"os"
	"path/filepath"

	"github.com/cloudwego/shmipc-go"
)

// shmipc-go's dispatcher never ends. It is started here, so that it is there before the tests
// and does not count as left behind.
func init() {
	dir, err := os.MkdirTemp("", "shmipc")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	lis, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		panic(err)
	}
	defer lis.Close()
	conn, err := net.Dial("unix", lis.Addr().String())
	if err != nil {
		panic(err)
	}
	_ = conn.Close() // before the handshake, which fails
	if far, err := lis.Accept(); err == nil {
		if s, err := shmipc.Server(far, shmipcConfig()); err == nil {
			_ = s.Close()
		}
		_ = far.Close()
	}
}
