package check

import (
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
)

// Leased is a key that was attached to a lease. Attached: the write was acknowledged. From Earliest
// on the lease may have lapsed: then a request began that is known to have made it last for so
// long.
type Leased struct {
	Key      string
	Attached bool
	Earliest time.Time
}

// Leases judges keys of leases that have all lapsed: each was deleted once, after its last write
// and not before its time, and none is left. It returns how late the last one was, too.
func Leases(epochs []history.Epoch, leased []Leased) (latest time.Duration, found []Violation) {
	c := checker{told: map[string]int{}}
	rows := map[string][]history.Row{}
	for _, e := range epochs {
		for _, r := range e.Rows {
			rows[r.Key] = append(rows[r.Key], r)
		}
	}
	for _, k := range leased {
		of := rows[k.Key]
		deleted := 0
		for _, r := range of {
			if r.Deleted {
				deleted++
			}
		}
		switch {
		case len(of) == 0 && !k.Attached:
		case len(of) == 0:
			c.violate("leases", "%s was attached to a lease, and is not in the log", k.Key)
		case deleted == 0:
			c.violate("leases", "%s is left, and its lease has lapsed", k.Key)
		case deleted > 1:
			c.violate("leases", "%s was deleted %d times", k.Key, deleted)
		case !of[len(of)-1].Deleted:
			c.violate("leases", "%s was written after its lease had lapsed", k.Key)
		default:
			late := of[len(of)-1].Time.Sub(k.Earliest)
			if late < 0 {
				c.violate("leases", "%s was deleted %s before its time", k.Key, -late)
			}
			latest = max(latest, late)
		}
	}
	return latest, c.report.Violations
}
