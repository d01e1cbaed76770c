// Package promises asks every promise of gRPC of every face of a server: of each way in which calls
// reach it. The table in table_test.go has a cell for each promise and each face.
package promises
