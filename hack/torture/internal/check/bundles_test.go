package check

import "testing"

// TestBundles: each way in which a bundle may be torn is found.
func TestBundles(t *testing.T) {
	at := func(revision int64, value string, keys ...string) (parts []Part) {
		for _, key := range keys {
			parts = append(parts, Part{key, value, revision})
		}
		return parts
	}
	for name, tc := range map[string]struct {
		do    func(*Bundles)
		loses bool
		right bool
	}{
		"written, read and seen": {do: func(b *Bundles) {
			b.Wrote("a", "b", "v", 5)
			b.Read("r", "b", 7, 5, at(5, "v", "x", "y"))
			b.Seen("w", "b", append(at(5, "v", "x", "y"), at(6, "", "y", "x")...))
			b.Read("r", "b", 7, 5, nil)
		}, right: true},
		"an older state": {do: func(b *Bundles) {
			b.Wrote("a", "b", "v", 5)
			b.Read("r", "b", 4, 0, at(3, "u", "x", "y"))
		}, right: true},
		"half is read":         {do: func(b *Bundles) { b.Read("r", "b", 7, 0, at(5, "v", "x")) }},
		"one twice":            {do: func(b *Bundles) { b.Read("r", "b", 7, 0, at(5, "v", "x", "x")) }},
		"two values":           {do: func(b *Bundles) { b.Read("r", "b", 7, 0, append(at(5, "v", "x"), at(5, "u", "y")...)) }},
		"two revisions":        {do: func(b *Bundles) { b.Read("r", "b", 7, 0, append(at(5, "v", "x"), at(6, "v", "y")...)) }},
		"from the future":      {do: func(b *Bundles) { b.Read("r", "b", 4, 0, at(5, "v", "x", "y")) }},
		"half is seen":         {do: func(b *Bundles) { b.Seen("w", "b", append(at(5, "v", "x", "y"), at(6, "", "x")...)) }},
		"read at too old":      {do: func(b *Bundles) { b.Read("r", "b", 4, 5, nil) }},
		"an older write":       {do: func(b *Bundles) { b.Read("r", "b", 7, 6, at(5, "v", "x", "y")) }},
		"an older write, lost": {do: func(b *Bundles) { b.Read("r", "b", 7, 6, at(5, "v", "x", "y")) }, loses: true, right: true},
		"told otherwise": {do: func(b *Bundles) {
			b.Wrote("a", "b", "v", 5)
			b.Seen("w", "b", at(5, "u", "x", "y"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBundles(2, tc.loses)
			tc.do(b)
			if found, _, _, _ := b.Found(); tc.right != (len(found) == 0) {
				t.Errorf("found %v", found)
			}
		})
	}
}
