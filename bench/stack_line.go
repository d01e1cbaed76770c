package main

// lineSize is how many bytes a cache line has, or half of one.
const lineSize = 64

// lineMost is how large a payload may be that is sent in a cache line, beside
// what encodes it, its length and whose turn it is.
const lineMost = lineSize - 16
