package database

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/archive"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// TestCompareBackup: what was written since a backup is counted, and the rest is as it is in the
// backup. A database into which it was restored with its revisions compares as the one that it was
// made of, and another one is refused.
func TestCompareBackup(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		store := openDatabase(t, d, noCompaction)
		compared := func(with *Store, file []byte, want string) {
			t.Helper()
			c, err := with.CompareBackup(t.Context(), bytes.NewReader(file), nil)
			got := fmt.Sprintf("same %d, gone %d, mortal %d, newer %d, %v", c.Same, c.Gone, c.Mortal,
				c.Newer, err)
			if got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
		r := pods(t, store)
		compared(store, backup(t, store), "same 0, gone 0, mortal 0, newer 0, <nil>")
		for _, name := range []string{"stays", "changes", "goes"} {
			create(t, r, name)
		}
		commit(t, r, contract.Mutation{Key: podKey("mortal"), TTL: time.Hour})
		// A transaction of several keys, whose parts come first in a backup.
		if _, err := r.Transact(t.Context(), []contract.Mutation{
			{Key: podKey("part-1"), Value: []byte("1")}, {Key: podKey("part-2"), Value: []byte("2")},
			{Key: podKey("last"), Value: []byte("3")}}); err != nil {
			t.Fatal(err)
		}
		file := backup(t, store)
		compared(store, file, "same 7, gone 0, mortal 0, newer 0, <nil>")
		change(t, r, "changes", "yes")
		change(t, r, "part-1", "yes")
		remove(t, r, "goes")
		remove(t, r, "mortal")
		create(t, r, "comes")
		compared(store, file, "same 3, gone 4, mortal 1, newer 3, <nil>")

		elsewhere := openDatabase(t, dbtest.Open(t, dbtest.SQLite), noCompaction)
		compared(elsewhere, file, "same 0, gone 7, mortal 1, newer 0, "+ErrOtherStore.Error())
		restore(t, elsewhere, file, RestoreOptions{})
		compared(elsewhere, file, "same 7, gone 0, mortal 0, newer 0, <nil>")
		remove(t, pods(t, elsewhere), "mortal")
		compared(elsewhere, file, "same 6, gone 1, mortal 1, newer 0, <nil>")
		remove(t, pods(t, elsewhere), "stays")
		compared(elsewhere, file, "same 5, gone 2, mortal 1, newer 0, "+ErrOtherStore.Error())

		if _, err := store.CompareBackup(t.Context(), bytes.NewReader(file[:len(file)-9]),
			nil); err == nil || !strings.Contains(err.Error(), "the backup cannot be used") {
			t.Errorf("a backup that is cut off: %v", err)
		}
	})
}

// TestCompareFindsDamage: a backup in which one thing differs from the database is found out, and
// the key is named.
func TestCompareFindsDamage(t *testing.T) {
	store := openDatabase(t, dbtest.Open(t, dbtest.SQLite), noCompaction)
	r := pods(t, store)
	for _, name := range []string{"a", "b", "c"} {
		create(t, r, name)
	}
	change(t, r, "b", "again")
	file := backup(t, store)
	for name, tc := range map[string]struct {
		spoil func(*contract.Record) bool
		want  string
	}{
		"nothing":  {func(*contract.Record) bool { return true }, ""},
		"value":    {func(r *contract.Record) bool { r.Value = []byte("x"); return true }, "not in the backup as it is"},
		"creation": {func(r *contract.Record) bool { r.Create--; return true }, "not in the backup as it is"},
		"version":  {func(r *contract.Record) bool { r.Version++; return true }, "not in the backup as it is"},
		"expiry":   {func(r *contract.Record) bool { r.Expiry++; return true }, "not in the backup as it is"},
		"lease":    {func(r *contract.Record) bool { r.Lease++; return true }, "not in the backup as it is"},
		"key":      {func(r *contract.Record) bool { r.Key += "x"; return true }, "not in the backup as it is"},
		"missing":  {func(*contract.Record) bool { return false }, "the backup of revision 5 does not"},
	} {
		spoilt := rewritten(t, store, file, func(r *contract.Record) bool {
			return r.Key != podKey("b") || tc.spoil(r)
		})
		_, err := store.CompareBackup(t.Context(), bytes.NewReader(spoilt), nil)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil ||
			!strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), string(podKey("b")))) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// rewritten is a backup with the records that keep keeps, and what it makes of them.
func rewritten(t *testing.T, store *Store, file []byte, keep func(*contract.Record) bool) []byte {
	t.Helper()
	in, err := archive.NewReader(bytes.NewReader(file), store.mvcc.Limits())
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var records []*contract.Record
	for r, err := in.Next(); err == nil; r, err = in.Next() {
		if keep(r) {
			records = append(records, r)
		}
	}
	h := in.Header
	h.Keys = int64(len(records))
	var buf bytes.Buffer
	out, err := archive.NewWriter(&buf, h, in.Leases)
	for _, r := range records {
		err = errors.Join(err, out.Write(r))
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}
