package check

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Bundles judges what clients of etcd see of bundles. A bundle is some keys that are written by
// transactions only, each of which puts all of them with one value, or deletes all. So nobody may
// ever see a part of them. It judges at once, since there is too much to be kept.
type Bundles struct {
	size  int
	loses bool

	mu sync.Mutex
	c  checker
	// values has what each write of a bundle has put, as far as somebody has been told.
	values map[write]string
	// newest is the newest write of each bundle that was acknowledged.
	newest                   map[string]int64
	writes, reads, responses int
}

type write struct {
	bundle   string
	revision int64
}

// Part is a key of a bundle as it was read, or as an event of a watch has it. It has no value if
// the event says that it was deleted.
type Part struct {
	Key, Value string
	// Revision is that of the write.
	Revision int64
}

// NewBundles begins to judge bundles of so many keys. If the scenario loses history, what was
// acknowledged may be gone, and revisions of the lost part may have been given again.
func NewBundles(size int, loses bool) *Bundles {
	return &Bundles{size: size, loses: loses, c: checker{told: map[string]int{}},
		values: map[write]string{}, newest: map[string]int64{}}
}

// Newest is the newest write of a bundle that was acknowledged before now.
func (b *Bundles) Newest(bundle string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.newest[bundle]
}

// Wrote notes that a client was told that its transaction has written a bundle. The value is ""
// if it has deleted the keys.
func (b *Bundles) Wrote(by, bundle, value string, revision int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writes++
	b.newest[bundle] = max(b.newest[bundle], revision)
	b.agree(by, bundle, value, revision)
}

// Read judges what a client has read of a bundle at a revision: all its keys as one write has put
// them, or none. It began when after had been acknowledged, and so has to see that write, or a
// later one.
func (b *Bundles) Read(by, bundle string, at, after int64, parts []Part) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reads++
	switch {
	case at < after && !b.loses:
		b.c.violate("bundle", "%s: %s is read at %d, though a write at %d was acknowledged before",
			by, bundle, at, after)
	case len(parts) == 0:
	case !b.together(by, bundle, parts):
	case parts[0].Revision > at:
		b.c.violate("bundle", "%s: %s, read at %d, has a write of %d", by, bundle, at,
			parts[0].Revision)
	case parts[0].Revision < after && !b.loses:
		b.c.violate("bundle", "%s: %s is as %d has left it, though a write at %d was acknowledged "+
			"before", by, bundle, parts[0].Revision, after)
	}
}

// Seen judges what a response of a watch has of a bundle: of each revision in it all keys.
func (b *Bundles) Seen(by, bundle string, parts []Part) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.responses++
	for len(parts) > 0 {
		n := slices.IndexFunc(parts, func(p Part) bool { return p.Revision != parts[0].Revision })
		if n < 0 {
			n = len(parts)
		}
		b.together(by, bundle, parts[:n])
		parts = parts[n:]
	}
}

// together tells whether the parts are a whole bundle, and notes who has written it.
func (b *Bundles) together(by, bundle string, parts []Part) bool {
	keys := map[string]bool{}
	whole := len(parts) == b.size
	for _, p := range parts {
		keys[p.Key] = true
		whole = whole && p.Revision == parts[0].Revision && p.Value == parts[0].Value
	}
	if !whole || len(keys) != b.size {
		var told []string
		for _, p := range parts {
			told = append(told, fmt.Sprintf("%s=%q at %d", p.Key, p.Value, p.Revision))
		}
		b.c.violate("bundle", "%s: of the %d keys of %s there are %s", by, b.size, bundle,
			strings.Join(told, ", "))
		return false
	}
	b.agree(by, bundle, parts[0].Value, parts[0].Revision)
	return true
}

// agree demands that all are told the same of a write.
func (b *Bundles) agree(by, bundle, value string, revision int64) {
	w := write{bundle, revision}
	was, known := b.values[w]
	if known && was != value && !b.loses {
		b.c.violate("bundle", "%s: the write of %s at %d is %q, and was %q to others", by, bundle,
			revision, value, was)
	}
	b.values[w] = value
}

// Found returns what was wrong, and how many transactions have written, and how many reads and
// responses of watches were judged.
func (b *Bundles) Found() (found []Violation, writes, reads, responses int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.c.report.Violations, b.writes, b.reads, b.responses
}
