package contract

import (
	"errors"
	"testing"
	"time"
)

// TestBeforeFill: which store may be filled, and that each turn has a marker of its own, beyond
// what the source has shown.
func TestBeforeFill(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for _, c := range []struct {
		name     string
		epoch    Epoch
		head     Revision
		keys     int64
		recorded bool
		then     Epoch
		err      error
	}{
		{"new", 1, emptyHead, 0, false, -2, nil},
		{"new again", 7, emptyHead, 0, false, -8, nil},
		{"written", 1, 2, 0, false, 0, ErrNotNew},
		{"with keys", 1, emptyHead, 1, false, 0, ErrNotNew},
		{"dropped", -2, 100, 0, false, 0, ErrDropped},
		{"being filled", -2, 100, 0, true, -3, nil},
		// The record is no key of a client: a store that serves has none.
		{"with a record", 1, 2, 1, true, 0, ErrNotNew},
	} {
		st := State{Head: Position{Epoch: c.epoch, Revision: c.head, Token: NewToken()}, Now: now}
		const seen = 1 << 60
		token := NewToken()
		after, err := beforeFill(st, c.keys, c.recorded, seen, token)
		if !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
		}
		if c.err == nil && (after.Head.Epoch != c.then || after.Head.Token != token ||
			after.Head.Revision <= seen || after.Compacted != after.Head.Revision ||
			after.Swept != after.Compacted || !after.Dropped()) {
			t.Errorf("%s: %+v", c.name, after)
		}
	}
}
