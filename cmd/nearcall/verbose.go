package main

import (
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"
)

// printMetadata prints metadata in lines that begin with prefix, in the order of the names.
// Metadata from a server can have line breaks, which must not begin another line.
func printMetadata(w io.Writer, prefix string, md metadata.MD) {
	for _, name := range slices.Sorted(maps.Keys(md)) {
		for _, value := range md[name] {
			if strings.HasSuffix(name, "-bin") {
				value = base64.StdEncoding.EncodeToString([]byte(value))
			}
			fmt.Fprintf(w, "%s%s\n", prefix, clean(name+": "+value))
		}
	}
}
