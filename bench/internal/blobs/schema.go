package blobs

import _ "embed"

// Schema is the compiled schema.
//
//go:embed blobs.bfbs
var Schema []byte
