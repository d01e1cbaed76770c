package main

import "testing"

func TestTheTableOfDifferences(t *testing.T) {
	all, err := parse(table)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 5 {
		t.Errorf("the table has %d lines", len(all))
	}
	for _, wrong := range []string{"a.Test", "a.Test\t*", "a.Test\t*\t", "a.Test * why"} {
		if _, err := parse(wrong); err == nil {
			t.Errorf("the table accepts %q", wrong)
		}
	}
}

func TestLookup(t *testing.T) {
	all, err := parse("# a comment\na.TestOne\t*\twhy\na.TestTwo/sub\ttcp ws\tsometimes: why\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		test, kind string
		listed     bool
	}{
		{"a.TestOne", "tcp", true}, {"a.TestOne/sub", "ws", true}, {"a.TestOneMore", "tcp", false}, {"b.TestOne", "tcp", false},
		{"a.TestTwo", "tcp", false}, {"a.TestTwo/sub", "ws", true}, {"a.TestTwo/sub", "unix", false},
	} {
		if got := lookup(all, c.test, c.kind) != nil; got != c.listed {
			t.Errorf("%s on %s is listed: %t", c.test, c.kind, got)
		}
	}
	if all[0].sometimes || !all[1].sometimes {
		t.Error("the reasons are misread")
	}
}
