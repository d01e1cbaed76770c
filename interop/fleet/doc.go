// Package fleet has no code but tests: clients of five servers on five machines, which are network
// namespaces, and of a name service, an etcd of three. Servers are killed, stopped, cut off and
// replaced under load, and so is etcd. grpc-go's client does the same in the same run. `make fleet`
// runs them, on Linux, as root, with etcd installed.
package fleet
