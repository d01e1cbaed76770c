package store

import _ "embed"

// Schema is the compiled schema.
//
//go:embed store.bfbs
var Schema []byte
