//go:build !linux

package quic

import "net"

func reportUnreachable(net.PacketConn, bool) {}

func checkBuffers(net.PacketConn) {}
