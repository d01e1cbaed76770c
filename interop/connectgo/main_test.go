package main

import "testing"

func TestEachLineOfTheTableNamesATestOfConnect(t *testing.T) {
	dir := t.TempDir()
	p := project()
	if err := p.Convert(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	all, err := p.ListAll(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 90 {
		t.Errorf("there are %d tests, want more", len(all))
	}
	if err := p.Check(all); err != nil {
		t.Error(err)
	}
}
