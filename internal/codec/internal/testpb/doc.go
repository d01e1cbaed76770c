// Package testpb has messages to test package codec with: all of proto2 and
// proto3, what editions add to them, and the opaque and hybrid APIs.
//
// Generating it takes protoc 27 or later.
package testpb

//go:generate protoc --go_out=. --go_opt=paths=source_relative proto2.proto proto3.proto editions.proto mixed.proto
//go:generate protoc --go_out=. --go_opt=paths=source_relative --go_opt=default_api_level=API_OPAQUE opaque.proto
//go:generate protoc --go_out=. --go_opt=paths=source_relative --go_opt=default_api_level=API_HYBRID hybrid.proto
