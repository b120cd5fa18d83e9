package mvcc

import "time"

// Writes are committed in groups, and reads share queries. Callers who were answered together come
// back one after the other, most of all over a network. If the first one were served alone, all
// others would have to wait for that. So who serves them waits until nearly as many are there as
// the last time, but no longer than serving those took: they would have to wait as long if it began
// without them.

// expected is for how many callers to wait after a number of them was served together. After one or
// two it is at most one: a caller who is alone is never held up.
func expected(served int) int { return served * 7 / 8 }

// patience is how long to wait for them after it took so long to serve the last ones. It is
// bounded, since even on a slow disk or network they come back long before that time is over.
func patience(took time.Duration) time.Duration { return min(took, 500*time.Microsecond) }
