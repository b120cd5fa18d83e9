package backendtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// retry calls the operation until it fails with something else than the database's own reasons.
func retry(ctx context.Context, op func() error) error {
	end := time.Now().Add(deadline)
	for {
		err := op()
		if err == nil || contract.ClassOf(err) != contract.Transient || ctx.Err() != nil ||
			time.Now().After(end) {
			return err
		}
	}
}

// together runs functions at the same time and fails the test with their errors.
func (f *fixture) together(functions ...func() error) {
	f.Helper()
	errs := make([]error, len(functions))
	var wg sync.WaitGroup
	for i, fn := range functions {
		wg.Go(func() { errs[i] = fn() })
	}
	wg.Wait()
	f.must(errors.Join(errs...))
}

// testConcurrentCommits commits from two backends, from several goroutines each, groups of keys of
// their own and of keys that all fight for. The log must be dense, each group's rows together, each
// key's rows a chain, and nothing in it that was not accepted or missing that was.
func testConcurrentCommits(f *fixture) {
	const workers, groups, hot = 4, 40, 3
	type write struct {
		key   contract.Key
		token contract.Token
		value string
	}
	var (
		mu       sync.Mutex
		accepted = map[contract.Revision]write{}
		refused  atomic.Int64
		other    = f.other()
		work     []func() error
	)
	for b, backend := range []contract.Backend{f.b, other.b} {
		for w := range workers {
			work = append(work, func() error {
				seen := f.seen
				known := map[contract.Key]contract.Revision{}
				for g := range groups {
					var ms []*contract.Mutation
					for _, k := range []contract.Key{
						contract.Key(fmt.Sprintf("own/%d/%d", b, w)),
						contract.Key(fmt.Sprintf("new/%d/%d/%d", b, w, g)),
						contract.Key(fmt.Sprintf("hot/%d", g%hot)),
						contract.Key(fmt.Sprintf("hot/%d", (g+1)%hot)),
					} {
						ms = append(ms, put(k, known[k], fmt.Sprintf("%d.%d.%d %s", b, w, g, k)))
					}
					token := newToken()
					var r *contract.GroupResult
					err := retry(f.ctx, func() (err error) {
						r, err = backend.Commit(f.ctx,
							&contract.Group{Token: token, Seen: seen, Mutations: ms})
						return err
					})
					if err != nil {
						return fmt.Errorf("group %d of worker %d of backend %d: %w", g, w, b, err)
					}
					seen = r.State.Head
					mu.Lock()
					for i, o := range r.Outcomes {
						known[ms[i].Key] = o.Revision
						if !o.Accepted {
							refused.Add(1)
							continue
						}
						if twice, ok := accepted[o.Revision]; ok {
							mu.Unlock()
							return fmt.Errorf("revision %d was given to %q and to %q", o.Revision,
								twice.key, ms[i].Key)
						}
						accepted[o.Revision] = write{ms[i].Key, token, string(ms[i].Value)}
					}
					mu.Unlock()
				}
				return nil
			})
		}
	}
	f.together(work...)

	rows := f.log(contract.PrevOfAll)
	if len(rows) != len(accepted)+1 {
		f.Fatalf("the log has %d rows, and %d writes were accepted", len(rows), len(accepted))
	}
	last := map[contract.Key]contract.Revision{}
	ended := map[contract.Token]bool{}
	for i, row := range rows {
		if row.Revision != contract.Revision(i+1) {
			f.Fatalf("row %d has revision %d", i, row.Revision)
		}
		if i == 0 {
			continue
		}
		if w := accepted[row.Revision]; w.key != row.Key || w.token != row.Token ||
			w.value != string(row.Value) {
			f.Fatalf("the row is %s, but %+v was accepted", describe([]contract.Row{row}), w)
		}
		if row.Prev != last[row.Key] {
			f.Fatalf("row %d replaced %d, but the key %q was at %d", row.Revision, row.Prev,
				row.Key, last[row.Key])
		}
		last[row.Key] = row.Revision
		if before := rows[i-1].Token; before != row.Token {
			ended[before] = true
			if ended[row.Token] {
				f.Fatalf("row %d is apart from the others of its group", row.Revision)
			}
		}
	}
	live := map[contract.Key]contract.Revision{}
	for _, row := range f.page(contract.PageQuery{Start: "\x00", End: "\xff", Limit: 100_000,
		KeysOnly: true}) {
		live[row.Key] = row.Revision
	}
	if !maps.Equal(live, last) {
		f.Errorf("the live keys are not the newest of the log")
	}
	f.Logf("%d writes accepted, %d refused", len(accepted), refused.Load())
}

// testResolveRacesCommit resolves a token from one backend while its group is on the way in the
// other. Whichever takes the lock first, both say the same: a group that was declared aborted never
// commits, and one that has committed is found.
func testResolveRacesCommit(f *fixture) {
	const rounds = 60
	other := f.other()
	committed := 0
	for i := range rounds {
		token, after := newToken(), f.state().Head
		ms := []*contract.Mutation{put(contract.Key(fmt.Sprintf("k%03d", i)), 0, "x"),
			put(contract.Key(fmt.Sprintf("l%03d", i)), 0, "y")}
		var resolution *contract.Resolution
		var refused error
		f.together(func() error {
			refused = retry(f.ctx, func() error {
				_, err := f.try(token, after, ms...)
				return err
			})
			return nil
		}, func() error {
			return retry(f.ctx, func() (err error) {
				resolution, err = contract.ResolveGroup(f.ctx, other.b, token, after)
				return err
			})
		})
		n, _, err := f.b.Count(f.ctx, ms[0].Key, ms[0].Key+"\x00", 0, 0)
		f.must(err)
		switch {
		case resolution.Committed && refused == nil && n == 1 && len(resolution.Rows) == len(ms):
			committed++
		case resolution.Aborted && contract.ClassOf(refused) == contract.Aborted && refused != nil && n == 0:
		default:
			f.Fatalf("round %d: the commit ended with %v, its resolution is %+v, and %d keys are there", i, refused, resolution, n)
		}
	}
	f.Logf("%d of %d groups were faster", committed, rounds)
}

// testConcurrentFences lets two backends notice the same at the same time: one fence is made.
func testConcurrentFences(f *fixture) {
	other := f.other()
	mine, err := f.b.Identity(f.ctx)
	f.must(err)
	theirs, err := other.b.Identity(f.ctx)
	f.must(err)
	if mine != theirs {
		f.Errorf("two backends of one database have the identities %+v and %+v", mine, theirs)
	}
	for range 5 {
		seen := f.state().Head
		var states [2]contract.State
		fence := func(i int, b contract.Backend) func() error {
			return func() error {
				return retry(f.ctx, func() (err error) {
					states[i], err = contract.StartEpoch(f.ctx, b,
						contract.Fence{Seen: seen, Replaces: seen.Epoch, Token: newToken(),
							Jump: 1 << 32, Fingerprint: fmt.Sprint(i)})
					return err
				})
			}
		}
		f.together(fence(0, f.b), fence(1, other.b))
		f.same(states[0], states[1])
		if h := states[0].Head; h.Epoch != seen.Epoch+1 || h.Revision != seen.Revision+1<<32 {
			f.Fatalf("the head is %+v after two fences of %+v", h, seen)
		}
		for _, b := range []contract.Backend{f.b, other.b} {
			_, err := b.Commit(f.ctx, &contract.Group{Token: newToken(), Seen: seen,
				Mutations: []*contract.Mutation{put("a", 0, "x")}})
			f.is(err, contract.Fenced)
		}
	}
}

// testConcurrentSweeps sweeps from two backends while a third writes.
func testConcurrentSweeps(f *fixture) {
	const keys, rounds = 20, 20
	known := map[contract.Key]contract.Revision{}
	round := func(b *fixture) {
		var ms []*contract.Mutation
		for k := range keys {
			key := contract.Key(fmt.Sprintf("k%02d", k))
			ms = append(ms, put(key, known[key], "x"))
		}
		for i, o := range b.commit(ms...).Outcomes {
			known[ms[i].Key] = o.Revision
		}
	}
	for range rounds {
		round(f)
	}
	boundary := f.seen.Revision
	_, err := contract.RaiseCompacted(f.ctx, f.b, boundary)
	f.must(err)
	one, two := f.other(), f.other()
	var deleted atomic.Int64
	sweep := func(b contract.Backend, batch int) func() error {
		return func() error {
			for {
				var n int
				var s contract.State
				err := retry(f.ctx, func() (err error) {
					n, s, err = contract.SweepBatch(f.ctx, b, batch)
					return err
				})
				deleted.Add(int64(n))
				if err != nil || s.Swept >= s.Compacted {
					return err
				}
			}
		}
	}
	written := make(chan struct{})
	f.together(sweep(one.b, 7), sweep(two.b, 11), func() error {
		defer close(written)
		for i := range 20 {
			r, err := f.try(newToken(), f.seen, put(contract.Key(fmt.Sprintf("new%02d", i)), 0, "x"))
			if err != nil {
				if contract.ClassOf(err) == contract.Transient {
					continue
				}
				return err
			}
			f.seen = r.State.Head
		}
		return nil
	})
	// The first marker and all but the last round are gone, each counted once.
	if want := int64(1 + keys*(rounds-1)); deleted.Load() != want {
		f.Errorf("the sweeps deleted %d rows, want %d", deleted.Load(), want)
	}
	rows := f.log(contract.PrevOfAll)
	for i, row := range rows[:keys] {
		if row.Revision != boundary-keys+contract.Revision(i)+1 {
			f.Fatalf("the sweeps left\n%s", describe(rows))
		}
	}
	if s := f.state(); s.Swept != boundary || s.Compacted != boundary {
		f.Errorf("the state is %+v, want swept %d", s, boundary)
	}
}

// testReadsSeeOtherBackends: a read that begins after a commit returned sees it, whichever process
// committed.
func testReadsSeeOtherBackends(f *fixture) {
	other := f.other()
	revision := contract.Revision(0)
	for i := range 50 {
		writer, reader := f, other
		if i%2 == 1 {
			writer, reader = other, f
		}
		revision = writer.put("k", revision, fmt.Sprint(i))
		if s := reader.state(); s.Head != writer.seen {
			f.Fatalf("the head is %+v after the commit of %+v", s.Head, writer.seen)
		}
		row, _, err := reader.b.Get(f.ctx, "k")
		f.must(err)
		if row == nil || row.Revision != revision {
			f.Fatalf("the key is %+v after the commit of %d", row, revision)
		}
		if rows := reader.page(contract.PageQuery{Start: "k", End: "l", Limit: 1}); len(rows) != 1 ||
			rows[0].Revision != revision {
			f.Fatalf("the page is\n%safter the commit of %d", describe(rows), revision)
		}
		tail, err := reader.b.Tail(f.ctx, revision, 10, contract.PrevOfDeletions)
		f.must(err)
		if len(tail.Rows) != 1 || tail.State.Head != writer.seen {
			f.Fatalf("the tail is\n%safter the commit of %d", describe(tail.Rows), revision)
		}
	}
}

// testSnapshotsAreConsistent reads while groups change several keys at once: the rows of one
// answer, and its state, show one moment.
func testSnapshotsAreConsistent(f *fixture) {
	const keys, rounds = 10, 60
	other := f.other()
	var ms []*contract.Mutation
	for k := range keys {
		ms = append(ms, put(contract.Key(fmt.Sprintf("k%02d", k)), 0, "0"))
	}
	f.commit(ms...)
	done := make(chan struct{})
	whole := func(rows []contract.Row, s contract.State) error {
		if len(rows) != keys {
			return fmt.Errorf("a page has %d rows", len(rows))
		}
		for i, row := range rows {
			if row.Revision != s.Head.Revision-keys+1+contract.Revision(i) ||
				string(row.Value) != string(rows[0].Value) {
				return fmt.Errorf("at head %d a page is\n%s", s.Head.Revision, describe(rows))
			}
		}
		return nil
	}
	reads := map[string]func() error{
		"page": func() error {
			p, err := other.b.Page(f.ctx, contract.PageQuery{Start: "k", End: "l", Limit: 100})
			if err != nil {
				return err
			}
			return whole(p.Rows, p.State)
		},
		"tail": func() error {
			head, err := other.b.State(f.ctx)
			if err != nil {
				return err
			}
			t, err := other.b.Tail(f.ctx, head.Head.Revision, 1<<20, contract.PrevOfAll)
			if err != nil {
				return err
			}
			if n := len(t.Rows); n == 0 || n%keys != 1 ||
				t.Rows[n-1].Revision != t.State.Head.Revision ||
				t.Rows[n-1].Token != t.State.Head.Token {
				return fmt.Errorf("a tail from %d with head %d has %d rows:\n%s",
					head.Head.Revision, t.State.Head.Revision, n, describe(t.Rows))
			}
			return nil
		},
		"get": func() error {
			row, s, err := other.b.Get(f.ctx, "k05")
			if err != nil {
				return err
			}
			if row == nil || row.Revision != s.Head.Revision-keys+6 {
				return fmt.Errorf("at head %d a row is %+v", s.Head.Revision, row)
			}
			return nil
		},
	}
	work := []func() error{func() error {
		defer close(done)
		for i := range rounds {
			var ms []*contract.Mutation
			for k := range keys {
				ms = append(ms, put(contract.Key(fmt.Sprintf("k%02d", k)),
					f.seen.Revision-keys+1+contract.Revision(k), fmt.Sprint(i+1)))
			}
			token := newToken()
			err := retry(f.ctx, func() error {
				r, err := f.try(token, f.seen, ms...)
				if err == nil {
					f.seen = r.State.Head
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	}}
	for _, name := range slices.Sorted(maps.Keys(reads)) {
		work = append(work, func() error {
			for {
				if err := reads[name](); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				select {
				case <-done:
					return nil
				default:
				}
			}
		})
	}
	f.together(work...)
	if want := contract.Revision(1 + keys*(rounds+1)); f.seen.Revision != want {
		f.Errorf("the head is %d, want %d", f.seen.Revision, want)
	}
}

func testPoller(f *fixture) {
	poller, ok := f.b.(contract.Poller)
	if !ok {
		f.Skip("the backend cannot tell more cheaply than by State that nothing has changed")
	}
	other := f.other()
	changed := func() bool {
		f.Helper()
		c, err := poller.Changed(f.ctx)
		f.must(err)
		return c
	}
	changed()
	for i := range 10 {
		if changed() {
			f.Fatal("something has changed, but nobody has written")
		}
		other.put(contract.Key(fmt.Sprintf("k%d", i)), 0, "x")
		if !changed() {
			f.Fatal("nothing has changed, but another backend has written")
		}
	}
}

func testNotifier(f *fixture) {
	notifier, ok := f.b.(contract.Notifier)
	if !ok {
		f.Skip("the database has no notifications")
	}
	other := f.other()
	ctx, cancel := context.WithCancel(f.ctx)
	heard := make(chan contract.Revision, 1000)
	up := make(chan struct{}, 1000)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		notifier.Listen(ctx, func(r contract.Revision) { heard <- r }, func(err error) {
			if err == nil {
				up <- struct{}{}
			}
		})
	}()
	wait := func(what string, c <-chan struct{}) {
		f.Helper()
		select {
		case <-c:
		case <-time.After(deadline):
			f.Fatalf("waited %v for %s", deadline, what)
		}
	}
	hear := func(revision contract.Revision) {
		f.Helper()
		timeout := time.After(deadline)
		for reached := false; !reached; {
			select {
			case r := <-heard:
				reached = r == 0 || r >= revision
			case <-timeout:
				f.Fatalf("revision %d was not notified", revision)
			}
		}
	}
	wait("the notifications to flow", up)
	for i := range 10 {
		r := other.put(contract.Key(fmt.Sprintf("k%d", i)), 0, "x")
		f.must(other.b.(contract.Notifier).Announce(f.ctx,
			[]contract.Announced{{Store: other.b, Revision: r}}))
		hear(r)
	}
	cancel()
	wait("the listener to end", ended)
}
