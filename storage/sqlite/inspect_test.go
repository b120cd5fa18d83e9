package sqlite

import (
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/inspect"
)

// TestInspectionPlans: no question reads a large table but by a primary key, or sorts it.
func TestInspectionPlans(t *testing.T) {
	b := open(t, fresh(t)).(*backend)
	defer b.Close()
	c, err := b.commits.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.commits.Put(c)
	searched := 0
	for q, text := range questions {
		if q == inspect.Indexes {
			continue // it sorts the columns of an index
		}
		s, err := c.Prepare("EXPLAIN QUERY PLAN " + text)
		if err != nil {
			t.Fatalf("%s: %v", q, err)
		}
		if err := s.Each(func() error {
			step := s.ColString(3)
			if strings.Contains(step, "SCAN rowkeeper_l") || strings.Contains(step, "SCAN rowkeeper_i") ||
				strings.Contains(step, "SCAN rowkeeper_u") || strings.Contains(step, "SCAN g") || strings.Contains(step, "SCAN i") ||
				strings.Contains(step, "TEMP B-TREE FOR ORDER BY") {
				t.Errorf("the %s: %s", q, step)
			}
			if strings.HasPrefix(step, "SEARCH rowkeeper_l") || strings.HasPrefix(step, "SEARCH g") {
				searched++
			}
			return nil
		}); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	if searched < 8 {
		t.Errorf("only %d steps search", searched)
	}
}
