package nearcall

import (
	"io/fs"
	"net"

	"github.com/nearcall/nearcall/internal/socketfile"
	"github.com/nearcall/nearcall/internal/targets"
)

// A Listener is returned by [Listen] and passed to [Server.Serve]. Clients do not always arrive as
// byte streams, so Accept can return an error: pass the Listener to Serve and do not wrap it.
//
// The listeners of tcp:, unix:, unix-abstract:, shm:, ws: and wss: also have the method
//
//	File() (*os.File, error)
//
// It returns a copy of the listening socket, which a child process can inherit with
// [os/exec.Cmd.ExtraFiles]. In the child, [net.FileListener] makes a listener of that copy. Pass it
// to [Server.Serve]. Connections wait in the socket's queue until one of the processes accepts
// them, so a restart loses none. The listener and its copies share the mode of the socket, which is
// non-blocking and stays so. Once File was called, a socket file belongs to the child, and Close
// does not remove it.
//
// The copy does not know its target, and Serve treats it as the socket of a tcp:, unix: or
// unix-abstract: target. For two kinds of targets this changes which clients can call:
//
//   - shm: the server also takes clients that stay on the socket, such as those of other users and
//     ordinary gRPC clients. With [MaxSharedMemory] of 0 it takes no clients of shm: targets.
//   - ws: and wss: WebSockets can be opened at every path, and only if [OtherClients] allows
//     WebClients. For wss: Serve does not check that the server has [Creds].
type Listener interface {
	net.Listener

	// Target returns the target that clients pass to [NewClient] to reach this listener.
	Target() string
}

// A ListenOption configures [Listen].
type ListenOption interface{ applyListen(*socketfile.Options) }

type listenOption func(*socketfile.Options)

func (f listenOption) applyListen(o *socketfile.Options) { f(o) }

// SocketFile sets the mode, the user and the group of a socket file, as os.Chmod and os.Chown do.
// Every user with write permission for the file can connect. uid and gid are numeric; -1 keeps the
// process's own. An unprivileged process can change only the group, and only to a group that it is
// a member of; otherwise [Listen] fails. Only permission bits are allowed in mode. Mode, user and
// group are in place before a client can connect. Without the option the mode follows from the
// process's umask.
//
// The option applies to unix:PATH and shm:PATH. [Listen] fails with other targets, and on Windows.
func SocketFile(mode fs.FileMode, uid, gid int) ListenOption {
	return listenOption(func(o *socketfile.Options) {
		o.Mode = &mode
		if uid != -1 || gid != -1 {
			o.Owner = &socketfile.Owner{UID: uid, GID: gid}
		}
	})
}

// TakeOver makes [Listen] replace the socket file of a server that listens at PATH, instead of
// failing. With it a service can restart without a refused or failed call: start the new process,
// and when it has called Listen, make the old one call [Server.GracefulStop]. Once Listen has
// replaced the file, new connections go to the new process. The old process serves the connections
// that it has, and their clients connect again with their next call. The old listener does not
// remove the file.
//
// The process needs the right to rename files in PATH's directory. PATH must be 13 bytes shorter
// than the usual limit, because Listen first makes the socket as PATH.nearcall-new. Peers of this
// server see that name as its address. If no server listens on target, TakeOver does nothing.
//
// The option applies to unix:PATH and shm:PATH. [Listen] fails with other targets, and on Windows.
func TakeOver() ListenOption {
	return listenOption(func(o *socketfile.Options) { o.TakeOver = true })
}

// Listen opens target for a server:
//
//   - inproc:NAME reserves NAME within the process until the listener is closed.
//   - tcp:HOST:PORT is a port of this machine. With port 0 the system chooses a free one; the
//     listener's Target contains it. Without HOST, or with 0.0.0.0 or [::], Listen listens on all
//     addresses of the machine, and the Target is for clients on the same machine.
//   - unix:PATH or unix:///PATH creates a socket file and removes it when the listener is closed.
//     Every user with write permission for the file can connect: see [SocketFile]. A file left
//     behind by a killed server is replaced; if several servers try that at once, one succeeds and
//     the others get an error. While Listen or Close runs it holds a lock file, PATH.nearcall-lock.
//     If another process holds the lock for more than a second, Close leaves the socket file. If
//     the process is killed while it holds the lock file, the file stays. Later servers of the same
//     user reuse it; those of other users fail with an error that names it. Windows supports unix
//     sockets since Windows 10, version 1803. On Windows PATH can begin with a drive.
//   - shm:PATH or shm:///PATH creates a socket file like unix:PATH, over which clients of the same
//     user set up shared memory. Clients of other users are refused. Linux only.
//   - ws://HOST:PORT/PATH is a port as for tcp:. Clients can open WebSockets only at PATH, which is
//     / if it is left out. For wss://HOST:PORT/PATH the server needs [Creds], best with
//     [NewTLS]. The default ports are 80 and 443.
//   - quic:HOST:PORT is a UDP port, with HOST and PORT as for tcp:. The program must import
//     github.com/nearcall/nearcall/quic, and the server needs [Creds] with [NewTLS].
//   - unix-abstract:NAME is a name in the network namespace, without a file. Every user
//     can connect. Linux only.
//
// Listen returns an error if target is in use or is not one of these. Credentials are
// an option of the server, not of the listener: see [Creds].
func Listen(target string, opts ...ListenOption) (Listener, error) {
	var file socketfile.Options
	for _, opt := range opts {
		if opt != nil {
			opt.applyListen(&file)
		}
	}
	return targets.Listen(target, file)
}
