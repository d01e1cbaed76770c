package main

import "testing"

// grpc-go is in the module cache, because this module requires it.
func TestEachLineOfTheTableNamesATestOfGRPCGo(t *testing.T) {
	dir := t.TempDir()
	p := project()
	if err := p.Convert(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	all, err := p.ListAll(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 300 {
		t.Errorf("there are %d tests, want hundreds", len(all))
	}
	if err := p.Check(all); err != nil {
		t.Error(err)
	}
}
