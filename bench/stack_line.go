package main

// lineSize is the size of a cache line in bytes, or of half a line on some processors.
const lineSize = 64

// lineMost is the largest payload that fits in a cache line, in bytes. The rest is for its
// encoding, the length and the turn.
const lineMost = lineSize - 16
