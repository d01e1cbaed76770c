package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nearcall/nearcall/internal/spelling"
)

// didYouMean returns a question that suggests up to three names for the misspelt name want. It
// begins with a semicolon. It is empty if no name is similar.
func didYouMean(want string, names []string) string {
	meant := similar(want, names)
	if len(meant) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(meant, " or ") + "?"
}

// similar returns up to three names that differ by few letters from the name want, the closest
// first. A different package counts as one letter, and the package can be missing in want.
func similar(want string, names []string) []string {
	type match struct {
		name  string
		slips int
	}
	var all []match
	want = strings.ToLower(want)
	for _, name := range names {
		lower := strings.ToLower(name)
		slips := spelling.Distance(want, lower)
		if want != "" && strings.HasSuffix(lower, "."+want) || strings.HasSuffix(lower, "/"+want) {
			slips = 0
		}
		other := spelling.Distance(lastPart(want), lastPart(lower))
		if lastPart(want) != want {
			other++ // its package differs
		}
		slips = min(slips, other)
		if slips <= max(len(lastPart(want))/3, 1) {
			all = append(all, match{name, slips})
		}
	}
	slices.SortStableFunc(all, func(a, b match) int { return cmp.Compare(a.slips, b.slips) })
	var closest []string
	for _, m := range all[:min(len(all), 3)] {
		closest = append(closest, clean(m.name))
	}
	return closest
}

// lastPart returns the name of a symbol without its package.
func lastPart(name string) string { return name[strings.LastIndexAny(name, "./")+1:] }
