package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Commit implements [contract.Backend].
func (b *backend) Commit(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
	in := newInput(g)
	work, withIndex := commitGroup, indexedGroup
	if in.leased {
		work, withIndex = leasedGroup, leasedIndexedGroup
	}
	args := []any{g.Token[:], []int64{int64(g.Seen.Epoch), g.Generation}, in.seen, in.seenTokens, in.keys, in.expected,
		in.deleted, in.values, in.ttls, in.wantsPrevious, in.leases}
	if in.condition == nil && g.Whole {
		in.condition = &contract.Condition{Hold: true}
	}
	if in.condition != nil {
		work, withIndex = comparedGroup, comparedIndexedGroup
		args = append(args, conditionArgs(in.condition)...)
	}
	if g.Whole {
		work, withIndex = wholeGroup, wholeIndexedGroup
	}
	if in.users != nil {
		work, withIndex = usersGroup, usersIndexedGroup
	}
	if in.indexed {
		work, args = withIndex, append(args, in.entries)
	}
	if in.users != nil {
		args = append(args, in.users, in.auditIDs)
	}
	o, err := b.transact(ctx, commitLock, work, args...)
	if err != nil {
		return nil, damagedGroup(err)
	}
	return in.result(g, o)
}

// damagedGroup makes damage that was found while a group was written an error of the group's data.
// The damage is where one of its keys is stored, and the group is divided until that key fails
// alone.
func damagedGroup(err error) error {
	var e *pgconn.PgError
	if errors.As(err, &e) && (e.Code == "XX001" || e.Code == "XX002") {
		return contract.Errorf(contract.Data, "the database is damaged where it holds a key, which "+
			"cannot be written: restore a backup into a new database (%w)", e)
	}
	return err
}

// conditionArgs are the parameters that sqlComparedGroup has besides those of sqlGroup.
func conditionArgs(c *contract.Condition) []any {
	n := len(c.Comparisons)
	starts, ends, values := make([][]byte, n), make([][]byte, n), make([][]byte, n)
	properties, operators, numbers := make([]int64, n), make([]int64, n), make([]int64, n)
	changed := make([]bool, n)
	for i := range c.Comparisons {
		p := &c.Comparisons[i]
		starts[i], ends[i], values[i] = []byte(p.Start), []byte(p.End), p.Value
		properties[i], operators[i], numbers[i] = int64(p.Property), int64(p.Operator), p.Number
		changed[i] = p.Changed
	}
	lows, highs := make([][]byte, len(c.Untouched)), make([][]byte, len(c.Untouched))
	for i, s := range c.Untouched {
		lows[i], highs[i] = []byte(s.Start), []byte(s.End)
	}
	return []any{starts, ends, properties, operators, numbers, values, c.Hold, lows, highs,
		int64(c.Since), int64(contract.Lowest(c.Since)), changed}
}

// input is a group as sqlGroup takes it: of the mutations with equal key and expectation only the
// first, since the others lose to it if it is accepted and are refused like it if it is not.
type input struct {
	// seen and seenTokens are Group.Seen and then Group.Earlier, all of one epoch.
	seen          []int64
	seenTokens    [][]byte
	keys          [][]byte
	expected      []int64
	deleted       []bool
	values        [][]byte
	ttls          []int64
	wantsPrevious []bool
	leases        []int64
	// entries are the texts of arrays, "" for a key without an index. indexed tells whether any key
	// may have entries.
	entries []string
	indexed bool
	// users and auditIDs are "" where there is none, and nil if no mutation has a user.
	users, auditIDs []string
	// leased tells whether any key is attached to a lease.
	leased bool
	// condition is that of the only mutation, or of a transaction, if there is one.
	condition *contract.Condition
	// place is, for each mutation of the group, its place in the input, or that of the one that
	// stands for it.
	place []int
}

type expectation struct {
	key    contract.Key
	expect contract.Revision
}

func newInput(g *contract.Group) *input {
	n := len(g.Mutations)
	in := &input{keys: make([][]byte, 0, n), expected: make([]int64, 0, n),
		deleted: make([]bool, 0, n), values: make([][]byte, 0, n),
		ttls: make([]int64, 0, n), wantsPrevious: make([]bool, 0, n), leases: make([]int64, 0, n),
		place: make([]int, n)}
	in.see(&g.Seen)
	for i := range g.Earlier {
		in.see(&g.Earlier[i])
	}
	first := make(map[expectation]int, n)
	for i, m := range g.Mutations {
		e := expectation{m.Key, m.Expect}
		if at, ok := first[e]; ok {
			in.place[i] = at
			continue
		}
		at := len(in.keys)
		first[e], in.place[i] = at, at
		in.keys = append(in.keys, []byte(m.Key))
		in.expected = append(in.expected, int64(m.Expect))
		in.deleted = append(in.deleted, m.Delete)
		in.values = append(in.values, m.Value)
		in.ttls = append(in.ttls, m.TTLMicros())
		in.wantsPrevious = append(in.wantsPrevious, m.WantsPrevious())
		in.leases = append(in.leases, int64(m.Lease))
		in.leased = in.leased || m.Lease != 0
		in.indexed = in.indexed || m.Indexed
		entries := ""
		if m.Indexed {
			entries = arrayOf(m.Entries)
		}
		in.entries = append(in.entries, entries)
		if m.If != nil {
			in.condition = m.If
		}
		if m.By != nil {
			if in.users == nil {
				in.users, in.auditIDs = make([]string, n), make([]string, n)
			}
			in.users[at], in.auditIDs[at] = m.By.Name, m.By.AuditID
		}
	}
	if in.users != nil {
		in.users, in.auditIDs = in.users[:len(in.keys)], in.auditIDs[:len(in.keys)]
	}
	return in
}

// arrayOf is the text of an array of entries.
func arrayOf(entries []contract.Entry) string {
	if len(entries) == 0 {
		return "{}"
	}
	var b strings.Builder
	for i, e := range entries {
		if i == 0 {
			b.WriteByte('{')
		} else {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"\\x%x"`, string(e))
	}
	return b.String() + "}"
}

func (in *input) see(p *contract.Position) {
	in.seen = append(in.seen, int64(p.Revision))
	in.seenTokens = append(in.seenTokens, p.Token[:])
}

// result reads what sqlGroup answered.
func (in *input) result(g *contract.Group, o outcome) (*contract.GroupResult, error) {
	if len(o.lock) != 1 || len(o.work) != 1 {
		return nil, contract.ErrEmptyStore
	}
	r, n := o.work[0], len(in.keys)
	before := contract.Position{Epoch: contract.Epoch(r.int(0)), Revision: r.revision(3), Token: r.token(4)}
	now := r.time(5)
	st := contract.State{Head: before, Compacted: r.revision(1), Swept: r.revision(2), Writable: true,
		Now: now}
	if err := contract.Refusal(g, st, r.bool(6), r.bool(7), r.bool(8)); err != nil {
		return nil, err
	}
	if err := g.CheckGeneration(o.lock[0].int(3)); err != nil {
		return nil, err
	}
	var columns [5]row
	for i := range columns {
		var err error
		if columns[i], err = r.array(9+i, n); err != nil {
			return nil, unreadable(err)
		}
	}
	accepted, currents, creations := columns[0], columns[1], columns[2]
	versions, leases := columns[3], columns[4]
	met := in.condition == nil || r.bool(15)
	fits := func(i int) bool {
		return accepted.bool(in.place[i]) && (met || g.Mutations[i].If == nil)
	}
	refused, full := false, g.Full(before.Revision)
	for i := range g.Mutations {
		refused = refused || g.Whole && !fits(i)
	}
	removed := 0
	for at := range accepted {
		if !refused && full == nil && accepted.bool(at) && in.wantsPrevious[at] {
			removed++
		}
	}
	previous, err := r.array(14, removed)
	if err != nil {
		return nil, unreadable(err)
	}

	res := &contract.GroupResult{Before: before, State: st, Time: now,
		LockWait: max(now.Sub(o.lock[0].time(0)), 0),
		Outcomes: make([]contract.Outcome, len(g.Mutations))}
	answered := -1
	for i, m := range g.Mutations {
		at := in.place[i]
		current := currents.revision(at)
		switch {
		case refused && fits(i): // for another mutation of the transaction
			res.Outcomes[i].Revision = current.Revision()
		case full != nil && fits(i):
			res.Outcomes[i] = contract.Outcome{Revision: current.Revision(), Err: full}
		case !fits(i):
			res.Outcomes[i] = contract.Refused(m, current, met, in.wantsPrevious[at])
		case at <= answered: // it lost to the one that stands for it
			res.Outcomes[i].Revision = current.Revision()
		default:
			// The accepted are numbered densely, but for those of a transaction.
			if !g.Whole || i == 0 {
				res.State.Head = contract.Position{Epoch: before.Epoch,
					Revision: res.State.Head.Revision + 1, Token: g.Token}
			}
			res.Outcomes[i] = contract.Outcome{Accepted: true, Revision: res.State.Head.Revision,
				Prev: current, Create: creations.revision(at), Version: versions.int(at),
				Lease: contract.Lease(leases.int(at))}
			if g.Whole && i < len(g.Mutations)-1 {
				res.Outcomes[i].Part = i + 1
			}
			if in.wantsPrevious[at] {
				res.Outcomes[i].PrevValue, previous = slices.Clone(previous[0]), previous[1:]
			}
		}
		answered = max(answered, at)
	}
	return res, nil
}

func unreadable(err error) error {
	return contract.Errorf(contract.Unknown, "PostgreSQL's answer to a commit cannot be read: %w", err)
}
