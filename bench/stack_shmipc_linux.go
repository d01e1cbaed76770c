package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/cloudwego/shmipc-go"
)

func init() {
	shmipc.SetLogLevel(shmipcSilent) // it logs to the standard output, on which the second process answers
	stacks["shmipc-go"] = stack{serveShmipc, dialShmipc}
}

// shmipcSilent is the level above all others.
const shmipcSilent = 5

// shmipcMemory is the shared memory of a connection, in bytes: enough for the largest
// messages both ways. With the default of 32 MB messages of 10 MB go through the socket.
const shmipcMemory = 256 << 20

func shmipcConfig() *shmipc.Config {
	c := shmipc.DefaultConfig()
	c.MemMapType = shmipc.MemMapTypeMemFd
	c.ShareMemoryBufferCap = shmipcMemory
	c.LogOutput = io.Discard
	return c
}

// serveShmipc sends back every message. It ignores the services.
func serveShmipc(network, address string, _ Services) (string, func(), error) {
	return serveOn(network, address, func(lis net.Listener) (run, stop func()) {
		var mu sync.Mutex
		var all sync.WaitGroup
		var sessions []*shmipc.Session
		run = func() {
			defer all.Wait()
			for {
				conn, err := lis.Accept()
				if err != nil {
					return
				}
				session, err := shmipc.Server(conn, shmipcConfig())
				if err != nil {
					_ = conn.Close()
					continue
				}
				mu.Lock()
				sessions = append(sessions, session)
				mu.Unlock()
				all.Go(func() {
					for {
						s, err := session.AcceptStream()
						if err != nil {
							return
						}
						all.Go(func() { echoShmipc(s) })
					}
				})
			}
		}
		return run, func() {
			_ = lis.Close()
			mu.Lock()
			defer mu.Unlock()
			for _, s := range sessions {
				_ = s.Close()
			}
		}
	})
}

// echoShmipc sends back the messages of a stream until it ends.
func echoShmipc(s *shmipc.Stream) {
	defer s.Close()
	for {
		head, body, err := receiveShmipc(s)
		if err != nil {
			return
		}
		if _, err := s.BufferWriter().WriteBytes(head); err != nil {
			return
		}
		if _, err := s.BufferWriter().WriteBytes(body); err != nil {
			return
		}
		if s.Flush(false) != nil {
			return
		}
		s.BufferReader().ReleasePreviousRead()
	}
}

// receiveShmipc receives a message and its prefix. They are valid until ReleasePreviousRead.
func receiveShmipc(s *shmipc.Stream) (head, body []byte, err error) {
	if head, err = s.BufferReader().ReadBytes(rawHead); err != nil {
		return nil, nil, err
	}
	size := binary.BigEndian.Uint32(head)
	if size > maxMessage {
		return nil, nil, fmt.Errorf("a message of %d bytes", size)
	}
	if size > 0 { // it does not read nothing
		body, err = s.BufferReader().ReadBytes(int(size))
	}
	return head, body, err
}

// dialShmipc returns a connection that exchanges messages on one stream.
func dialShmipc(network, address string, _ Row) (Conn, error) {
	config := shmipc.DefaultSessionManagerConfig()
	config.Config = shmipcConfig()
	config.Network, config.Address, config.SessionNum = network, address, 1
	manager, err := shmipc.NewSessionManager(config)
	if err != nil {
		return Conn{}, err
	}
	s, err := manager.GetStream()
	if err != nil {
		_ = manager.Close()
		return Conn{}, err
	}
	var reply []byte
	swap := func(sent []byte) ([]byte, error) {
		s.BufferReader().ReleasePreviousRead()
		if _, err := s.BufferWriter().WriteBytes(sent); err != nil {
			return nil, err
		}
		if err := s.Flush(false); err != nil {
			return nil, err
		}
		head, body, err := receiveShmipc(s)
		if err != nil {
			return nil, err
		}
		reply = append(append(reply[:0], head...), body...)
		return reply, nil
	}
	return swapping(swap, func() {
		_ = s.Close()
		_ = manager.Close()
	}), nil
}
