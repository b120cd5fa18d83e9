package mvcc_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// TestIndexIsBuilt walks through more keys than a step has, while others write who do not know what
// values say, and who have not heard of the index. Pages by it have what they should, and nothing
// that remembers ranges takes such a page for all of its range.
func TestIndexIsBuilt(t *testing.T) {
	db := inMemory(t)
	s, other := open(t, db, mvcc.Config{CacheBytes: 64 << 20}), openBackend(t, db)
	const step = 500 // keys of a walk
	const directory, end = contract.Key("/d/"), contract.Key("/d0")
	const keys = step + 20
	name := func(i int) contract.Key { return directory + contract.Key(fmt.Sprintf("%04d", i)) }
	value := func(i int) []byte { return []byte{byte('a' + i%2)} }
	for i := range keys {
		if _, err := s.Commit(t.Context(), contract.Mutation{Key: name(i), Value: value(i)}); err != nil {
			t.Fatal(err)
		}
	}
	found := func(x *contract.Indexes, kv *mvcc.KeyValue) (entries []contract.Entry, ok bool) {
		for _, d := range x.In(directory) {
			entries = append(entries, contract.ValueEntry(d.ID, string(kv.Value)))
		}
		return entries, string(kv.Value) != "?"
	}
	ours := func(*contract.Index) bool { return true }
	declare := func() {
		t.Helper()
		if _, err := s.ChangeIndexes(t.Context(), func(x *contract.Indexes) (bool, error) {
			x.Drop(directory, "value")
			return true, x.Add(contract.Directory{Path: directory}, "value")
		}); err != nil {
			t.Fatal(err)
		}
	}
	// by lists the keys with a value, and those of which it is not known.
	by := func(v string, limit int) (got []contract.Key, err error) {
		x := s.Indexes()
		id := x.In(directory)[0].ID
		o := mvcc.RangeOptions{Start: directory, End: end, Limit: limit, By: &mvcc.IndexQuery{Generation: x.Generation,
			Entries: []contract.Entry{contract.ValueEntry(id, v), contract.UnknownEntry(id)}}}
		for {
			page, err := s.Range(t.Context(), o)
			if err != nil {
				return nil, err
			}
			for i := range page.KVs {
				got = append(got, page.KVs[i].Key)
			}
			if !page.More {
				return got, nil
			}
			o.From, o.At = got[len(got)-1]+"\x00", page.Revision
		}
	}
	declare()
	if _, err := s.BuildIndexes(t.Context(), directory, end, ours, found); err != nil {
		t.Fatal(err)
	}
	if d := s.Indexes().All[0]; d.State != contract.IndexBuilding || string(d.Built) != string(name(step-1)) {
		t.Fatalf("after a step the index is %+v", d)
	}
	// One before the place of the walk, and one after it.
	for _, i := range []int{3, keys - 1} {
		if _, err := s.Commit(t.Context(), contract.Mutation{Key: name(i), Value: []byte("?"),
			Expect: contract.Any}); err != nil {
			t.Fatal(err)
		}
	}
	for more := true; more; {
		var err error
		if more, err = s.BuildIndexes(t.Context(), directory, end, ours, found); err != nil {
			t.Fatal(err)
		}
	}
	if d := s.Indexes().All[0]; d.State != contract.IndexReady {
		t.Fatalf("in the end the index is %+v", d)
	}
	var want []contract.Key
	for i := range keys {
		if i%2 == 0 || i == 3 || i == keys-1 {
			want = append(want, name(i))
		}
	}
	for _, limit := range []int{0, 7, 100} {
		if got, err := by("a", limit); err != nil || !slices.Equal(got, want) {
			t.Fatalf("pages of %d keys have %d keys, want %d, %v", limit, len(got), len(want), err)
		}
	}
	if n, err := s.CountEntries(t.Context(), []contract.Entry{contract.ValueEntry(s.Indexes().All[0].ID, "a")},
		directory, end, 50); err != nil || n != 50 {
		t.Errorf("%d keys are counted, %v", n, err)
	}
	whole, err := s.Range(t.Context(), mvcc.RangeOptions{Start: directory, End: end})
	if err != nil || len(whole.KVs) != keys {
		t.Fatalf("all keys are %d, %v", len(whole.KVs), err)
	}
	// Somebody else declares it anew: this process finds that out by a page, and by a group.
	for _, use := range []func() error{
		func() error { _, err := by("a", 0); return err },
		func() error {
			before := s.Indexes()
			_, err := s.Commit(t.Context(), contract.Mutation{Key: name(0), Value: []byte("a"),
				Expect: contract.Any, Known: before, Found: []contract.Entry{contract.ValueEntry(before.All[0].ID, "a")}})
			return errors.Join(err, errIf(s.Indexes().Generation == before.Generation))
		},
	} {
		if _, err := contract.ChangeIndexes(t.Context(), other, func(x *contract.Indexes) (bool, error) {
			return x.BuildAnew(), nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := use(); err != nil && !errors.Is(err, contract.ErrOtherIndexes) {
			t.Fatal(err)
		} else if err == nil && s.Indexes().All[0].State == contract.IndexReady {
			t.Fatal("a page was read by old declarations")
		}
		if _, err := s.RefreshIndexes(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.Indexes().All[0].State != contract.IndexBuilding {
			t.Fatalf("the index is %+v", s.Indexes().All[0])
		}
		for more := true; more; {
			if more, err = s.BuildIndexes(t.Context(), directory, end, ours, found); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func errIf(wrong bool) error {
	if wrong {
		return errors.New("the process has not learned of the declarations")
	}
	return nil
}
