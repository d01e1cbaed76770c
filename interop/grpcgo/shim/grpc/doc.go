// Package grpc stands for grpc-go's in its own tests. Server, ClientConn, the options and the client interceptors are
// grpc-go's or nearcall's, as near.On says. All else is exported again by a file that is generated beside this one, in
// the copy that the tests are built in. So tests change their imports, and nothing else.
//
// What docs/migrate.md says to write instead of an option that nearcall does not have is what the option does here.
package grpc
