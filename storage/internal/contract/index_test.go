package contract

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestEntryChanges compares with sets: what is taken away and added makes one list of the other,
// and nothing that stays is touched.
func TestEntryChanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	some := func() (entries []Entry) {
		for e := range 6 {
			if rng.IntN(2) == 0 {
				entries = append(entries, ValueEntry(7, strings.Repeat("x", e)))
			}
		}
		return entries
	}
	for range 500 {
		before, after := some(), some()
		gone, added := EntryChanges(before, after)
		for _, e := range before {
			if slices.Contains(gone, e) == slices.Contains(after, e) {
				t.Fatalf("%q to %q removes %q", before, after, gone)
			}
		}
		for _, e := range after {
			if slices.Contains(added, e) == slices.Contains(before, e) {
				t.Fatalf("%q to %q adds %q", before, after, added)
			}
		}
		if len(before)-len(gone)+len(added) != len(after) {
			t.Fatalf("%q to %q removes %q and adds %q", before, after, gone, added)
		}
		packed := PackEntries(after)
		if unpacked, err := UnpackEntries(packed); err != nil || !slices.Equal(unpacked, after) {
			t.Fatalf("%q is unpacked as %q, %v", after, unpacked, err)
		}
		if n := len(packed); n > 0 {
			if _, err := UnpackEntries(packed[:n-1]); err == nil {
				t.Fatal("entries that were cut off are unpacked")
			}
		}
	}
}

// TestEntriesOf is about what the committer makes of the entries that a writer has found.
func TestEntriesOf(t *testing.T) {
	known := &Indexes{}
	directory := Directory{Path: "/a/"}
	for _, name := range []string{"one", "two", "three"} {
		if err := known.Add(directory, name); err != nil {
			t.Fatal(err)
		}
	}
	found := []Entry{ExistsEntry(1), ValueEntry(1, "x"), ValueEntry(2, "y"), ValueEntry(3, "z")}
	now := &Indexes{Generation: known.Generation, Last: known.Last, All: slices.Clone(known.All)}
	if !now.Drop("/a/", "three") || now.Drop("/a/", "three") {
		t.Fatal("an index is not dropped once")
	}
	if err := now.Add(directory, "three"); err != nil {
		t.Fatal(err)
	}
	if err := now.Add(directory, "one"); err == nil {
		t.Error("an index is declared twice")
	}
	for _, test := range []struct {
		name string
		key  Key
		by   *Indexes
		want []Entry
	}{
		{"what was found, and unknown for an index that came since", "/a/k", known,
			[]Entry{ExistsEntry(1), ValueEntry(1, "x"), ValueEntry(2, "y"), UnknownEntry(4)}},
		{"nothing was found", "/a/k", nil,
			[]Entry{UnknownEntry(1), UnknownEntry(2), UnknownEntry(4)}},
		{"another history, which has given the IDs otherwise", "/a/k", &Indexes{All: []Index{
			{ID: 1, Directory: "/a/", Name: "two"}, {ID: 2, Directory: "/b/", Name: "two"},
			{ID: 4, Directory: "/a/", Name: "three", State: IndexDropping}}},
			[]Entry{UnknownEntry(1), UnknownEntry(2), UnknownEntry(4)}},
		{"another directory", "/b/k", known, nil},
	} {
		if got := now.Entries(test.key, test.by, found); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, not %q", test.name, got, test.want)
		}
	}
	if !now.Covers("/a/k") || now.Covers("/b/k") {
		t.Error("other keys are covered")
	}
	if long := ValueEntry(1, strings.Repeat("v", 1000)); len(long) != EntryBytes {
		t.Errorf("the entry of a long value has %d bytes", len(long))
	}
}

// TestEntryOrder: entries are in the order of their values. Numbers are compared with what
// math/big makes of them, and come before all else.
func TestEntryOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	number := func() string {
		s := []string{"", "-"}[rng.IntN(2)] + strings.Repeat("0", rng.IntN(3)) +
			strconv.FormatInt(rng.Int64N(int64(math.Pow10(rng.IntN(19)))+1), 10)
		if rng.IntN(2) == 0 {
			s += "." + strings.Repeat("0", rng.IntN(4)) + strconv.Itoa(rng.IntN(1000))
		}
		return s
	}
	for range 20_000 {
		a, b := number(), number()
		x, ok := new(big.Rat).SetString(a)
		y, isNumber := new(big.Rat).SetString(b)
		if !ok || !isNumber {
			t.Fatalf("%q, %q", a, b)
		}
		got := strings.Compare(string(ValueEntry(1, a)), string(ValueEntry(1, b)))
		if want := x.Cmp(y); got != want && (want != 0 || a == b) {
			t.Fatalf("%s is compared with %s as %d, not %d", a, b, got, want)
		}
		if (a == b) != (ValueEntry(1, a) == ValueEntry(1, b)) {
			t.Fatalf("%s and %s have the entries %q and %q", a, b, ValueEntry(1, a), ValueEntry(1, b))
		}
	}
	inOrder := []string{"-10.5", "-10", "-0.001", "0", "000.0010", "0.01", "9", "10", "10.5",
		strings.Repeat("9", numberBytes), "", "+5", ".5", "1-2", "1.", "1.2.3", "10Mi", "2026-11-29T00:00:00Z",
		"2026-11-29T00:00:01Z", "9 ", strings.Repeat("9", numberBytes+1), "a", "b"}
	for i := range inOrder[1:] {
		if a, b := ValueEntry(1, inOrder[i]), ValueEntry(1, inOrder[i+1]); a >= b {
			t.Errorf("%q is not before %q: %q, %q", inOrder[i], inOrder[i+1], a, b)
		}
	}
	low, high := ValueEntries(7)
	for _, value := range append(inOrder, strings.Repeat("\xff", 1000)) {
		e := ValueEntry(7, value)
		said, ok := e.SaysValue()
		if e < low || e >= high || !ok || EntrySaying(7, said) != e {
			t.Errorf("the entry %q of %q is not what it says", e, value)
		}
	}
	for _, e := range []Entry{UnknownEntry(7), ExistsEntry(7), ValueEntry(6, "a"), ValueEntry(8, "a"), ""} {
		if _, ok := e.SaysValue(); e >= low && e < high || ok && e.Index() == 7 {
			t.Errorf("%q is taken for a value", e)
		}
	}
}
