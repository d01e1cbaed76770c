package main

import (
	"fmt"
	"io"
	"path/filepath"
)

// resultFiles returns the files of a table, which share a base name: the tables in
// Markdown, the data, and pictures of all rows and of some.
func resultFiles(base string) []output {
	name := filepath.Base(base)
	return []output{
		{path: base + ".md", write: func(w io.Writer, r *Report) error {
			if _, err := fmt.Fprintf(w, "# Results: %s\n\nWhat `make bench` printed. The chart of it is [%s.svg](%[2]s.svg), the figures are in\n[%[2]s.csv](%[2]s.csv).\n\n",
				r.Table.Title, name); err != nil {
				return err
			}
			return writeMarkdown(w, r)
		}},
		{path: base + ".csv", write: writeCSV},
		{path: base + ".svg", write: writeSVG},
		{path: base + "-short.svg", write: writeShortSVG},
	}
}
