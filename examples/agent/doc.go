// Package agent is a coordinator that gives work to agents over connections that the agents have
// opened: they listen on no port, and may be behind NAT.
//
// An agent is a client that serves. It connects with nearcall.WithServer, so that the coordinator
// can call its Agent service, and stays connected without making calls with
// nearcall.WithPersistentConnection. It calls Join, a stream that lasts until the agent leaves.
// Join's handler gets a connection back to the agent from nearcall.PeerConn, and offers it to the
// jobs that wait. Clients that submit jobs are ordinary clients, of nearcall or of gRPC.
//
// An agent that leaves in the middle of a job fails the coordinator's call with Unavailable.
// Another agent continues after what was last reported. An agent whose connection was lost
// connects by itself, and joins again.
//
// Files: coordinator.go and agent.go have the two sides, primes.go the work. The program in
// cmd runs the sides as processes, in three terminals:
//
//	go run ./examples/agent/cmd coordinator
//	go run ./examples/agent/cmd agent ann
//	go run ./examples/agent/cmd submit 0 20000000
//
// More agents may join with other names. Stop one with Ctrl-C while it works: it finishes its
// job and leaves. Kill it, and another one goes on. All three take -at for another target than
// unix:/tmp/coordinator.sock, such as tcp:127.0.0.1:7000. Over a network that is not yours the
// coordinator needs nearcall.Creds, and a check that an agent may have its name.
package agent
