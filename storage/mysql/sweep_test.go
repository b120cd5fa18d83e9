package mysql_test

import (
	"errors"
	"io"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
)

// TestSweepOvertakenByImport: a sweep has read which revisions it will delete, and then rows are
// imported that have the same.
func TestSweepOvertakenByImport(t *testing.T) {
	each(t, func(t *testing.T, db dbtest.DB) {
		ctx := t.Context()
		sweeper, importer := open(t, db.URL), open(t, db.URL)
		st, err := sweeper.State(ctx)
		if err != nil {
			t.Fatal(err)
		}
		// Revision 2, which 3 replaces.
		for expect := range []contract.Revision{0, 2} {
			m := &contract.Mutation{Key: "k", Expect: contract.Revision(2 * expect), Value: []byte("v")}
			r, err := sweeper.Commit(ctx, &contract.Group{Token: token(), Seen: st.Head,
				Mutations: []*contract.Mutation{m}})
			if err != nil || !r.Outcomes[0].Accepted {
				t.Fatal(r, err)
			}
			st = r.State
		}
		if _, err := contract.RaiseCompacted(ctx, sweeper, st.Head.Revision); err != nil {
			t.Fatal(err)
		}
		restored := contract.Record{Key: "restored", Revision: 2, Create: 2, Version: 1, Value: []byte("v")}
		overtaken := mysql.Overtaken{Backend: sweeper, Meanwhile: func() {
			_, err := (&contract.Import{
				Head: st.Head.Revision, Replace: true, Token: token(),
				Records: func(each func(*contract.Record) error) error { return each(&restored) },
			}).Into(ctx, importer)
			if err != nil {
				t.Error(err)
			}
		}}
		if n, _, err := contract.SweepBatch(ctx, overtaken, 100); err == nil {
			t.Errorf("the sweep has deleted %d rows", n)
		}
		row, st, err := importer.Get(ctx, "restored")
		if err != nil || row == nil || row.Revision != 2 || st.Head.Epoch != 2 {
			t.Fatalf("what was imported is %+v at %+v, %v", row, st, err)
		}
		if _, st, err := contract.SweepBatch(ctx, sweeper, 100); err != nil || st.Swept != st.Head.Revision {
			t.Errorf("the next sweep: %+v, %v", st, err)
		}
		if row, _, err := importer.Get(ctx, "restored"); err != nil || row == nil {
			t.Errorf("after the next sweep: %+v, %v", row, err)
		}
		// Errors of the caller come back as they are.
		undone := &contract.Import{Replace: true, Records: func(func(*contract.Record) error) error {
			return io.ErrNoProgress
		}}
		_, err = undone.Into(ctx, importer)
		if !errors.Is(err, io.ErrNoProgress) || err.Error() != io.ErrNoProgress.Error() {
			t.Errorf("the caller's error came back as %v", err)
		}
	})
}
