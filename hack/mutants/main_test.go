package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestPlaces looks for the places of the faults: whoever changes the code has to move them.
func TestPlaces(t *testing.T) {
	names := map[string]bool{}
	for _, m := range all() {
		code, err := os.ReadFile(filepath.Join("../..", m.file))
		if err == nil {
			_, err = m.apply(string(code))
		}
		if err != nil {
			t.Errorf("%s: %v", m.what, err)
		}
		if name := m.breaks + " " + m.what; names[name] {
			t.Errorf("two faults are named %q", name)
		} else {
			names[name] = true
		}
	}
}
