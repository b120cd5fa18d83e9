package sqlite

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// TestInterrupt ends a statement that would never end.
func TestInterrupt(t *testing.T) {
	for _, url := range []string{fresh(t), "memory:"} {
		b := open(t, url).(*backend)
		defer b.Close()
		ctx, cancel := context.WithCancel(context.Background())
		var st mvcc.State
		began := false
		err := b.readRows(ctx, b.reads, `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n WHERE ?1 = 1`, &st,
			func(s *stmt) {
				s.int(1)
				began = true
				time.AfterFunc(time.Millisecond, cancel)
			}, func(*stmt) {})
		oneSentence(t, err, mvcc.Unavailable, "did not answer in time")
		if !began || !errors.Is(err, context.Canceled) {
			t.Errorf("began: %v; %v", began, err)
		}
		// The connection is as good as before, and nothing of the interruption is left.
		for range 3 {
			for range cap(b.reads.slots) {
				if _, err := b.Page(context.Background(), mvcc.PageQuery{Start: "a", End: "b", Limit: 1}); err != nil {
					t.Error(err)
				}
			}
		}
	}
}
