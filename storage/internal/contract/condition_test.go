package contract

import (
	"errors"
	"testing"
)

// TestComparison: each property by each operator, below, at and above what it is compared with.
func TestComparison(t *testing.T) {
	at := Current{Version: 10, Create: 20, ID: IDOf(30, 7), Lease: 40}
	numbers := map[Property]int64{CompareVersion: 10, CompareCreate: 20, CompareRevision: 30,
		CompareLease: 40}
	holds := map[Operator][3]bool{Equal: {false, true, false}, Greater: {true, false, false},
		Less: {false, false, true}, NotEqual: {true, false, true}}
	for operator, want := range holds {
		for i, value := range []string{"a", "b", "b\x00"} {
			for property, number := range numbers {
				c := Comparison{Property: property, Operator: operator, Number: number + int64(i) - 1}
				if got := c.Fits(at, nil); got != want[i] {
					t.Errorf("%+v: %t", c, got)
				}
			}
			c := Comparison{Property: CompareValue, Operator: operator, Value: []byte(value)}
			if got := c.Fits(at, []byte("b")); got != want[i] {
				t.Errorf("%+v: %t", c, got)
			}
			if c.Fits(at, nil) {
				t.Errorf("%+v holds of a value that is lost", c)
			}
		}
	}
	// Of a key that does not exist all is 0, and no comparison of its value holds.
	for _, c := range []struct {
		c                   Comparison
		some, misfit, holds bool
	}{
		{Comparison{Property: CompareVersion}, false, false, true},
		{Comparison{Property: CompareRevision, Operator: Greater}, false, false, false},
		{Comparison{Property: CompareCreate, Operator: Less, Number: 1}, false, false, true},
		{Comparison{Property: CompareValue, Operator: NotEqual, Value: []byte("x")}, false, false,
			false},
		{Comparison{Property: CompareValue}, false, false, false},
		{Comparison{Property: CompareVersion}, true, false, true},
		{Comparison{Property: CompareVersion}, true, true, false},
	} {
		if got := c.c.Holds(c.some, c.misfit); got != c.holds {
			t.Errorf("%+v: %t", c, got)
		}
	}
}

// TestCondition: a condition demands that all comparisons hold, or that one does not. The condition
// is decided before leases and values are looked at.
func TestCondition(t *testing.T) {
	for _, c := range []struct {
		holding  []bool
		all, not bool
	}{
		{[]bool{true}, true, false},
		{[]bool{false}, false, true},
		{[]bool{true, true}, true, false},
		{[]bool{true, false}, false, true},
		{[]bool{false, true}, false, true},
		{[]bool{false, false}, false, true},
	} {
		for _, hold := range []bool{true, false} {
			condition := &Condition{Hold: hold, Comparisons: make([]Comparison, len(c.holding))}
			for i := range condition.Comparisons {
				condition.Comparisons[i].Number = int64(i)
			}
			want := c.all
			if !hold {
				want = c.not
			}
			m := &Mutation{Key: "k", Lease: 7, If: condition}
			outcomes, n := Decide([]*Mutation{m}, 10, &Found{
				Current:  func(Key) Current { return Current{} },
				Compared: func(_ *Condition, c2 *Comparison) (some, misfit bool) { return true, !c.holding[c2.Number] },
				Held:     func(Lease) bool { return want },
			})
			if met := n == 1; met != want || outcomes[0].Accepted != want ||
				!want && !errors.Is(outcomes[0].Err, ErrCondition) {
				t.Errorf("%v, of which all have to hold: %t: %+v", c.holding, hold, outcomes[0])
			}
			m.Expect = 5
			if outcomes, _ = Decide([]*Mutation{m}, 10, &Found{
				Current: func(Key) Current { return Current{ID: 6} },
			}); outcomes[0].Err != nil || outcomes[0].Revision != 6 {
				t.Errorf("a mutation that expects another revision: %+v", outcomes[0])
			}
		}
	}
}
