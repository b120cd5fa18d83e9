package backendtest

import (
	"maps"
	"slices"
	"strings"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// by has a user ask for a mutation.
func by(name, auditID string, m *contract.Mutation) *contract.Mutation {
	m.By = &contract.User{Name: name, AuditID: auditID}
	return m
}

// users reads the users of all rows at revisions up to one.
func (f *fixture) users(upto contract.Revision) map[contract.RowID]contract.User {
	f.Helper()
	found := map[contract.RowID]contract.User{}
	var ids []contract.RowID
	for r := contract.Revision(1); r <= upto; r++ {
		ids = append(ids, contract.IDOf(r, 0), contract.IDOf(r, 1))
	}
	for some := range slices.Chunk(ids, contract.MaxChain) {
		rows, st, err := f.b.Users(f.ctx, some)
		f.must(err)
		f.sane(st)
		for _, u := range rows {
			if _, twice := found[u.ID]; twice {
				f.Errorf("row %d has two users", u.ID)
			}
			found[u.ID] = u.User
		}
	}
	return found
}

// recorded compares the users of all rows.
func (f *fixture) recorded(upto contract.Revision, want map[contract.RowID]contract.User) {
	f.Helper()
	if got := f.users(upto); !maps.Equal(got, want) {
		f.Errorf("the users are %v, want %v", got, want)
	}
	from, err := f.b.Sweepable(f.ctx, 1)
	f.must(err)
	if from.Users != (len(want) > 0) {
		f.Errorf("the sweep finds users: %t, want %t", from.Users, len(want) > 0)
	}
}

// testUsers: the user of an accepted mutation is recorded with its row, and swept with it. Whatever
// was not written has no user.
func testUsers(f *fixture) {
	f.put("a", 0, "of nobody")
	want := map[contract.RowID]contract.User{}
	f.recorded(9, want)

	alice, bob := contract.User{Name: "alice", AuditID: "id-1"}, contract.User{Name: "bob", AuditID: "id-2"}
	strange := contract.User{Name: `système:'x"\\ ` + strings.Repeat("é", 240) + "🙂", AuditID: `a'b\`}
	long := contract.User{Name: strings.Repeat("n", contract.MaxUserBytes),
		AuditID: strings.Repeat("i", contract.MaxAuditIDBytes)}
	f.grant(7)
	leased := put("leased", 0, "v")
	leased.Lease = 7
	ms := []*contract.Mutation{
		by(alice.Name, alice.AuditID, put("a", 2, "a3")),
		by("mallory", "m", put("a", 2, "too late")), by("mallory", "m", put("a", 77, "wrong")),
		by("mallory", "m", put("none", 7, "wrong")),
		put("b", 0, "of nobody"),
		by(bob.Name, bob.AuditID, put("c", 0, "c5")), put("c", 0, "too late"),
		by(strange.Name, strange.AuditID, put("d", 0, "d6")),
		by(long.Name, long.AuditID, put("e", 0, "e7")),
		by("", "only the id", put("f", 0, "f8")), by("only the name", "", put("g", 0, "g9")),
		by("tenant", "t", leased),
	}
	for i, o := range f.commit(ms...).Outcomes {
		if o.Accepted && ms[i].By != nil {
			want[o.ID()] = *ms[i].By
		}
	}
	if len(want) != 7 || want[3] != alice || want[5] != bob || want[10] != (contract.User{Name: "tenant", AuditID: "t"}) {
		f.Fatalf("the users of the group are %v", want)
	}
	f.recorded(f.seen.Revision+5, want)

	// The entries of an index do not change who it is.
	indexed := by(bob.Name, "id-3", put("a", 3, "a11"))
	indexed.Indexed = true
	want[f.commit(indexed, put("b", 4, "of nobody")).Outcomes[0].Revision] = contract.User{Name: "bob", AuditID: "id-3"}
	want[f.commit(by(alice.Name, "id-4", del("c", 5))).Outcomes[0].Revision] = contract.User{Name: "alice", AuditID: "id-4"}
	f.recorded(f.seen.Revision+5, want)

	// A transaction has no user, and parts of its own.
	f.transaction(put("d", 6, "part"), put("e", 7, "last"))
	f.commit(by("mallory", "m", put("a", 1, "conflict")), by("mallory", "m", del("none", 3)))
	f.recorded(f.seen.Revision+5, want)

	// What a group that has ended unknown has written has its user, and what one has that was
	// aborted has none.
	done, aborted := newToken(), newToken()
	r, err := f.try(done, f.seen, by("bob", "late", put("late", 0, "v")))
	f.must(err)
	want[r.Outcomes[0].Revision] = contract.User{Name: "bob", AuditID: "late"}
	seen := f.seen
	f.seen = r.State.Head
	if r, err := contract.ResolveGroup(f.ctx, f.b, done, seen); err != nil || !r.Committed {
		f.Fatalf("the group is %+v, %v", r, err)
	}
	if r, err := contract.ResolveGroup(f.ctx, f.b, aborted, f.seen); err != nil || !r.Aborted {
		f.Fatalf("the group is %+v, %v", r, err)
	}
	_, err = f.try(aborted, f.seen, by("mallory", "m", put("aborted", 0, "v")))
	f.is(err, contract.Aborted)
	f.recorded(f.seen.Revision+5, want)

	// A sweep removes the users of the rows that it removes, and no others.
	for upto := contract.Revision(2); upto <= f.seen.Revision; upto++ {
		f.compact(upto, 2)
		have := f.rowIDs()
		maps.DeleteFunc(want, func(id contract.RowID, _ contract.User) bool { return !have[id] })
		f.recorded(f.seen.Revision+5, want)
	}
	if _, swept := want[3]; swept || len(want) < 4 {
		f.Errorf("after all sweeps there are users of %v", slices.Sorted(maps.Keys(want)))
	}

	f.must(f.b.Locked(f.ctx, contract.LockOptions{}, func(tx contract.Tx) error {
		return tx.Remove([]contract.Key{"f", "none"})
	}))
	delete(want, 8)
	f.recorded(f.seen.Revision+5, want)
	_, err = (&contract.Import{Head: 7, Replace: true, Token: newToken(),
		Records: func(each func(*contract.Record) error) error {
			return each(&contract.Record{Key: "a", Revision: 5, Create: 5, Version: 1, Value: []byte("v")})
		}}).Into(f.ctx, f.b)
	f.must(err)
	f.recorded(30, map[contract.RowID]contract.User{})
}

// rowIDs are the IDs of all rows of the log.
func (f *fixture) rowIDs() map[contract.RowID]bool {
	f.Helper()
	have := map[contract.RowID]bool{}
	for _, r := range f.log(contract.NoValues) {
		have[r.ID()] = true
	}
	return have
}

// testUsersOfDropped: no batch of a drop leaves a user without the row.
func testUsersOfDropped(f *fixture) {
	for i := range 12 {
		m := put(contract.Key(rune('a'+i)), 0, "v")
		if i%3 > 0 {
			m = by("alice", "id", m)
		}
		f.commit(m)
	}
	upto := f.put("last", 0, "stays, as the marker of a drop does")
	for left := 8; ; {
		erased := 0
		f.must(f.b.Locked(f.ctx, contract.LockOptions{}, func(tx contract.Tx) (err error) {
			erased, err = tx.Erase(3)
			return err
		}))
		have, users := f.rowIDs(), f.users(upto)
		for id := range users {
			if !have[id] {
				f.Errorf("row %d is gone, and has a user", id)
			}
		}
		if gone := left - len(users); erased < gone || gone < min(left, 1) {
			f.Errorf("a batch has removed %d rows, and there are %d users of %d", erased, len(users), left)
		}
		if left = len(users); erased == 0 {
			break
		}
	}
	f.recorded(upto, map[contract.RowID]contract.User{})
}
