package main

// resultFiles returns the files of a table, which share a base name: the data, and pictures of all rows
// and of some.
func resultFiles(base string) []output {
	return []output{
		{path: base + ".csv", write: writeCSV},
		{path: base + ".svg", write: writeSVG},
		{path: base + "-short.svg", write: writeShortSVG},
	}
}
