package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// The addresses of the two ends, from the block for measurements of networks.
var addresses = [2]netip.Addr{netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.18.0.2")}

// A network is two network namespaces with a TUN device in each, and a relay between the
// devices. Nothing else reaches the namespaces. They have no names: the kernel removes them
// when the descriptors of this process and the processes inside are gone, however those
// have ended.
type network struct {
	ends  [2]*end
	links [2]*link // to the first end and to the second
	relay sync.WaitGroup
}

// newNetwork returns a network whose links lose the packets that seed says. It calls failed
// if a link fails, which might be in close.
func newNetwork(c Conditions, seed uint64, failed func(error)) (_ *network, err error) {
	n := new(network)
	defer func() {
		if err != nil {
			for _, e := range n.ends {
				err = errors.Join(err, e.close())
			}
		}
	}()
	for i := range n.ends {
		if n.ends[i], err = newEnd(addresses[i]); err != nil {
			return nil, err
		}
	}
	for i := range n.links {
		n.links[i] = newLink(c, seed+uint64(i))
		n.relay.Go(func() {
			if err := n.links[i].carry(n.ends[1-i].device, n.ends[i].device); err != nil {
				failed(fmt.Errorf("the relay: %w", err))
			}
		})
	}
	return n, nil
}

// close ends the relay. The namespaces go when the processes inside have ended.
func (n *network) close() error {
	err := errors.Join(n.ends[0].close(), n.ends[1].close())
	n.relay.Wait()
	return err
}

// An end is a network namespace and its device.
type end struct {
	namespace *os.File
	device    *os.File
}

// newEnd makes a namespace with a device that has the address.
func newEnd(address netip.Addr) (*end, error) {
	e := new(end)
	err := onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("a network namespace: %w", err)
		}
		if e.namespace, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		e.device, err = openDevice(address)
		return err
	})
	if errors.Is(err, os.ErrPermission) {
		err = fmt.Errorf("%w\nrun lossy as root; or, where users can open /dev/net/tun, under unshare --user --map-root-user", err)
	}
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// do calls f on a thread inside the namespace. Processes that f starts are inside, too.
func (e *end) do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(e.namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// onThread calls f on a thread that nothing else uses, which ends afterwards.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		done <- f()
	}()
	return <-done
}

func (e *end) close() error {
	if e == nil {
		return nil
	}
	var err error
	for _, f := range []*os.File{e.device, e.namespace} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// waiting is how many packets of the system wait for the relay at most, so that none are
// dropped but by the link. In a user namespace it stays at the kernel's 500, which suffice
// unless the relay gets no processor.
const waiting = 10_000

// openDevice makes the namespace's TUN device and sets it up.
func openDevice(address netip.Addr) (*os.File, error) {
	const path, name = "/dev/net/tun", "link"
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("this machine offers no TUN device: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	kind, err := unix.NewIfreq(name)
	if err == nil {
		kind.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, kind)
	}
	if err == nil {
		err = setUp(name, address)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("a TUN device: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), path), nil // it can be polled from now on
}

// setUp gives a device its address and queue, and turns it on.
func setUp(name string, address netip.Addr) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, step := range []struct {
		request uint
		set     func(*unix.Ifreq) error
	}{
		{unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(address.AsSlice()) }},
		{unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr([]byte{255, 255, 255, 0}) }},
		{unix.SIOCSIFTXQLEN, func(r *unix.Ifreq) error { r.SetUint32(waiting); return nil }},
		{unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil }},
	} {
		r, err := unix.NewIfreq(name)
		if err == nil {
			err = step.set(r)
		}
		if err == nil {
			err = unix.IoctlIfreq(fd, step.request, r)
		}
		if err != nil && !(step.request == unix.SIOCSIFTXQLEN && err == unix.EPERM) {
			return err
		}
	}
	return nil
}
