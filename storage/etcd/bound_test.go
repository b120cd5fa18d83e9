package etcd

import (
	"math/rand/v2"
	"testing"
)

// TestBound: stores hold no more than all may together, whatever they take and give back, and each
// can always have what is its own.
func TestBound(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1_000 {
		most, stores := 1+r.Int64N(10_000), 1+r.IntN(20)
		all := newTotal(most, stores)
		bounds := make([]bound, stores)
		for i := range bounds {
			bounds[i].total = all
		}
		for range 1_000 {
			b := &bounds[r.IntN(stores)]
			if r.IntN(3) == 0 {
				b.add(-r.Int64N(b.held + 1))
				continue
			}
			before, n := b.held, 1+r.Int64N(most)
			if taken := b.take(n); taken && b.held != before+n || !taken && b.held != before {
				t.Fatalf("%d, and %d more, are %d", before, n, b.held)
			}
		}
		forced := r.Int64N(2) * most // what is sent counts, whether or not there is room
		bounds[0].add(forced)
		sum := -forced
		for i := range bounds {
			b := &bounds[i]
			if missing := all.own - b.held; missing > 0 && !b.take(missing) {
				t.Fatalf("a store that holds %d is refused some of its own %d", b.held, all.own)
			}
			sum += b.held
		}
		if sum > most {
			t.Fatalf("%d stores hold %d, and may hold %d", stores, sum, most)
		}
		for i := range bounds {
			bounds[i].add(-bounds[i].held)
		}
		if all.used != 0 || !bounds[0].take(all.ever()) || bounds[0].take(1) ||
			stores == 1 && all.ever() != most {
			t.Fatalf("%d of %d stores holds %d, and may hold %d", 1, stores, bounds[0].held, most)
		}
	}
}
