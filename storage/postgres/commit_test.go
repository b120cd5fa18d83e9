package postgres_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// TestCommitFollowsTheRules: the statement that commits a group decides as contract.CheckGroup and
// contract.DecideGroup do, whatever the database holds and the group expects: other epochs, lower
// heads, other tokens, missing rows, recorded tokens, compacted ahead of what was seen, keys that
// occur several times, values that are lost, leases that have ended, conditions that are met or
// not. Some groups are transactions, and some rows parts of one.
func TestCommitFollowsTheRules(t *testing.T) {
	url := migrated(t)
	b, conn := openURL(t, url), connect(t, url)
	defer b.Close()
	const cases, keys = 400, 4
	accepted, lost, without, unmet, refused := 0, 0, 0, 0, map[contract.Class]int{}
	exec(t, conn, `INSERT INTO rowkeeper_lease (store, id, ttl, expiry) VALUES (1, 1, 60, 1), (1, 2, 60, 0)`)
	for range cases {
		seed := rand.Uint64()
		rng := rand.New(rand.NewPCG(seed, 0))
		token := func() contract.Token { return contract.Token{1 + byte(rng.IntN(3))} }

		// A store of any kind: the head, and other rows of the log, some with a value that is lost.
		st := contract.State{Head: contract.Position{Epoch: contract.Epoch(1 + rng.IntN(2)),
			Revision: contract.Revision(4 + rng.IntN(4)), Token: token()}}
		st.Compacted = contract.Revision(rng.IntN(int(st.Head.Revision) + 1))
		log := map[contract.RowID]contract.Token{st.Head.Revision: st.Head.Token}
		for r := contract.Revision(1); r < st.Head.Revision; r++ {
			if rng.IntN(4) > 0 {
				log[r] = token()
			}
		}
		current := map[contract.Key]contract.Current{}
		for i := range keys {
			if rng.IntN(3) > 0 {
				r := 1 + contract.Revision(rng.IntN(int(st.Head.Revision)))
				id := r
				if rng.IntN(3) == 0 {
					id = contract.IDOf(r, 1+i)
					log[id] = token()
					if rng.IntN(4) == 0 {
						delete(log, id)
					}
				}
				current[contract.Key(fmt.Sprint("key", i))] = contract.Current{ID: id,
					Create: 1 + contract.Revision(rng.IntN(int(r))), Version: 1 + rng.Int64N(1<<40),
					Lease: contract.Lease(rng.Int64N(3))}
			}
		}
		g := &contract.Group{Token: newToken(), Seen: contract.Position{Epoch: st.Head.Epoch,
			Revision: contract.Revision(1 + rng.IntN(9))}}
		g.Seen.Token = log[g.Seen.Revision]
		switch rng.IntN(8) {
		case 0:
			g.Seen.Epoch = 1 + contract.Epoch(rng.IntN(3))
		case 1:
			g.Seen.Token = token()
		case 2, 3, 4:
			g.Seen = st.Head
		}
		var at []contract.Token
		for r := range g.Seen.Revision {
			if p := (contract.Position{Epoch: g.Seen.Epoch, Revision: r, Token: log[r]}); rng.IntN(4) == 0 {
				if p.Token == (contract.Token{}) || rng.IntN(16) == 0 {
					p.Token = token()
				}
				g.Earlier, at = append(g.Earlier, p), append(at, log[r])
			}
		}
		g.Whole = rng.IntN(3) == 0
		alone := map[contract.Key]bool{}
		for range 1 + rng.IntN(6) {
			m := &contract.Mutation{Key: contract.Key(fmt.Sprint("key", rng.IntN(keys)))}
			m.Expect = current[m.Key].ID.Revision()
			switch rng.IntN(8) {
			case 0, 1:
				m.Expect = contract.Revision(rng.IntN(4))
			case 2, 3:
				m.Expect = contract.Any
			}
			if m.Expect != 0 && rng.IntN(2) == 0 {
				m.Delete, m.HasPrev = true, m.Expect > 0 && rng.IntN(3) == 0
			} else {
				m.Value, m.Lease = []byte("value"), contract.Lease(rng.IntN(2)*rng.IntN(4))
			}
			if is, ok := alone[m.Key]; ok && (is || m.Alone() || g.Whole) {
				continue // the queue keeps them apart, and a transaction has no key twice
			}
			alone[m.Key] = m.Alone()
			g.Mutations = append(g.Mutations, m)
		}
		if rng.IntN(3) == 0 {
			m := g.Mutations[0]
			m.If = &contract.Condition{Hold: rng.IntN(2) == 0}
			for range 1 + rng.IntN(2) {
				key := contract.Key(fmt.Sprint("key", rng.IntN(keys)))
				at, property := current[key], contract.Property(rng.IntN(5))
				c := contract.Comparison{Start: key, End: key + "\x00", Property: property,
					Operator: contract.Operator(rng.IntN(4)), Value: []byte("a value"),
					Number: []int64{at.Version, int64(at.Create), int64(at.ID.Revision()), 0,
						int64(at.Lease)}[property]}
				if rng.IntN(3) == 0 {
					c.End = contract.Key(fmt.Sprint("key", rng.IntN(keys+1)))
				}
				m.If.Comparisons = append(m.If.Comparisons, c)
			}
			if rng.IntN(2) == 0 {
				m.If.Since = 1 + contract.Revision(rng.IntN(int(st.Head.Revision)))
				m.If.Untouched = []contract.Span{{Start: "a", End: "b"}, {Start: "key1", End: "key2"}}
				m.If.Untouched = m.If.Untouched[rng.IntN(3):]
				m.If.Comparisons = m.If.Comparisons[:rng.IntN(2)]
				for i := range m.If.Comparisons {
					m.If.Comparisons[i].Changed = rng.IntN(2) == 0
				}
			}
			if !g.Whole {
				g.Mutations = g.Mutations[:1]
			}
		}
		aborted := rng.IntN(8) == 0

		exec(t, conn, `TRUNCATE rowkeeper_log, rowkeeper_live, rowkeeper_aborted`,
			fmt.Sprintf(`UPDATE rowkeeper_store SET epoch = %d, compacted = %d, swept = 0`,
				st.Head.Epoch, st.Compacted))
		var rows []string
		for r, token := range log {
			rows = append(rows, fmt.Sprintf(`(1, %d, 0, 0, 1, 0, 1, false, '%s', '\x%x', 'a value')`, r,
				written(r), token))
		}
		exec(t, conn,
			`INSERT INTO rowkeeper_log (store, revision, prev_revision, create_revision, version, lease, time, deleted, key, token, value) VALUES `+strings.Join(rows, ", "))
		for key, at := range current {
			exec(t, conn,
				fmt.Sprintf(`INSERT INTO rowkeeper_live (store, key, revision, create_revision, version, lease) VALUES (1, '%s', %d, %d, %d, %d)`,
					key, at.ID, at.Create, at.Version, at.Lease))
		}
		if aborted {
			exec(t, conn,
				fmt.Sprintf(`INSERT INTO rowkeeper_aborted (store, token, seen) VALUES (1, '\x%x', %d)`,
					g.Token, g.Seen.Revision))
		}

		got, err := b.Commit(t.Context(), g)
		want := contract.CheckGroup(g, contract.Guard{State: st, At: log[g.Seen.Revision], Earlier: at,
			Aborted: aborted})
		if fmt.Sprint(err) != fmt.Sprint(want) || want != nil && contract.ClassOf(err) != contract.ClassOf(want) {
			t.Fatalf("seed %d: the group is refused by %v, want %v", seed, err, want)
		}
		head := st.Head
		if want == nil {
			outcomes, n := contract.DecideGroup(g, st.Head.Revision, &contract.Found{
				Compacted: st.Compacted,
				Current:   func(k contract.Key) contract.Current { return current[k] },
				Compared: func(of *contract.Condition, c *contract.Comparison) (some, misfit bool) {
					for key, at := range current {
						if key >= c.Start && key < c.End {
							if some = true; c.Changed && !since(log, of.Since, key) {
								continue
							}
							var value []byte
							if _, there := log[at.ID]; there {
								value = []byte("a value")
							}
							misfit = misfit || !c.Fits(at, value)
						}
					}
					return some, misfit
				},
				Touched: func(c *contract.Condition) bool {
					return c.Touches("key1") && since(log, c.Since, "key1") ||
						c.Touches("a key") && since(log, c.Since, "a key")
				},
				Held: func(l contract.Lease) bool { return l == 1 },
				Removed: func(_ *contract.Mutation, at contract.RowID) ([]byte, bool, error) {
					_, there := log[at]
					return []byte("a value"), there, nil
				},
				Returned: contract.Returned{Bound: b.Limits().GroupBytes},
			})
			for i, w := range outcomes {
				o, plain := got.Outcomes[i], w
				o.Err, plain.Err = nil, nil
				if err := got.Outcomes[i].Err; !reflect.DeepEqual(o, plain) ||
					fmt.Sprint(err) != fmt.Sprint(w.Err) ||
					err != nil && contract.ClassOf(err) != contract.ClassOf(w.Err) {
					t.Fatalf("seed %d: mutation %d, %+v, is decided as %+v, want %+v", seed, i,
						g.Mutations[i], got.Outcomes[i], w)
				}
				switch {
				case errors.Is(w.Err, contract.ErrNoLease):
					without++
				case errors.Is(w.Err, contract.ErrCondition):
					unmet++
				case w.Err != nil:
					lost++
				}
			}
			if n > 0 {
				head = contract.Position{Epoch: head.Epoch, Revision: head.Revision + g.Rises(n),
					Token: g.Token}
			}
			accepted += n
			if got.State.Head != head {
				t.Fatalf("seed %d: the head is %+v, want %+v", seed, got.State.Head, head)
			}
		} else {
			refused[contract.ClassOf(want)]++
		}
		if after, err := b.State(t.Context()); err != nil || after.Head != head {
			t.Fatalf("seed %d: the head is %+v, want %+v: %v", seed, after.Head, head, err)
		}
	}
	// That all kinds of cases were among them, and how many is chance.
	if accepted < cases/8 || min(lost, without, unmet, refused[contract.Aborted], refused[contract.Fenced],
		refused[contract.Transient]) == 0 {
		t.Errorf("of %d groups were refused: %v; %d mutations were accepted, %d met a lost value, and "+
			"of %d the condition was not met", cases, refused, accepted, lost, unmet)
	}
}

// written is the key of a row of the log.
func written(id contract.RowID) contract.Key {
	return contract.Key([]string{"key1", "a key", "none"}[id.Revision()%3])
}

// since tells whether a key was written after a revision.
func since(log map[contract.RowID]contract.Token, r contract.Revision, key contract.Key) bool {
	for id := range log {
		if id.Revision() > r && written(id) == key {
			return true
		}
	}
	return false
}
