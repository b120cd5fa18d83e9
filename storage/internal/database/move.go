package database

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// MoveResource moves the objects of a resource to another store, from where they are, and records
// that. The prefix is that of the servers, by default [DefaultPrefix]. The objects are below it, in
// the directory that the resource names, group/resource. No server should run meanwhile: one that
// serves the resource all the same closes the database, and what it has confirmed until then is
// moved. Both stores are fenced, so all clients of servers that go on list anew. A store is refused
// in which a third one keeps its objects of the resource.
//
// The objects keep their UIDs and the times at which they expire. They get new resourceVersions if
// the other store was ever written. Its history is fenced beyond that of the first one, so that
// clients that resume begin anew. A move that was interrupted is ended by the next one, to whatever
// store. A store that has objects of the resource is refused, unless there are none to move. Then
// it is recorded as their place.
func MoveResource(ctx context.Context, c Config, prefix, resource,
	to string) (moved int64, err error) {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	if _, _, err := SplitResource(resource); err != nil {
		return 0, err
	}
	c = c.withDefaults()
	c.Compaction.Window, c.WindowFor = -1, nil
	s, err := openOne(ctx, c)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	m := move{store: s, c: c, directory: Directory(prefix, resource),
		is: placement{Prefix: path.Join("/", prefix), Resource: resource, Store: s.placements.own}}
	if moved, err = m.run(ctx, to); err != nil {
		return 0, fmt.Errorf("the objects of %s were not moved: %w", resource, err)
	}
	return moved, nil
}

// move is a move of the objects below a directory. It takes these steps, each of which can be the
// last one if it is interrupted:
//
//  1. The record says that the objects are moved between the two stores, and are still where they
//     were. From here on nobody serves them who has heard of it. Then the store where they are is
//     fenced. From here on nobody writes them.
//  2. All objects are put into the other store, in one transaction.
//  3. The record says that they are there, and still moved.
//  4. They are deleted where they were.
//  5. The record says that nothing is moved any more.
//
// The record names two stores. Only the objects in the objects' own store are valid: in the other
// one are the copies after 1 and 2, and the originals after 3. The next move deletes them first.
// The other store had no such objects before 1. If it has, and there are none to move, its objects
// are not copies: the record names it in one step, and nothing is deleted.
//
// A server may run that has not heard of 1. Until the fence it writes as before, and all of that is
// copied: deletions leave nothing to copy. To look into the log later would not do, whenever it is:
// the server could delete an object after the look, confirm that, and hear of 1 then; the object
// would come back in the other store. But after the fence each commit is refused, under the commit
// lock, whose process has not gone over to the new epoch (contract.CheckGroup). Before a server
// goes over, it reads the record ([Store.hear]), which is there since 1 is older than the fence; so
// it goes over only if it serves none of the objects. A server that opens the store after the fence
// reads the record after that, too. It does not matter how late the server hears of 1, or whether.
//
// Programs that do not follow the record, such as `rowkeeper etcd` on that store, do not heed it.
// Before 3, the move finds what they write anew and stops. After 3, it deletes no object that is
// newer than the copy, and stops there.
type move struct {
	store     *Store
	c         Config
	directory contract.Key
	r         record
	// is what the record says of the directory.
	is placement
}

func (m *move) run(ctx context.Context, to string) (moved int64, err error) {
	if m.r, err = readRecord(ctx, m.store.mvcc); err != nil {
		return 0, err
	}
	if p, ok := m.r.places[m.directory]; ok {
		m.is = p
	}
	target, err := m.store.at(ctx, m.c, to)
	if err != nil {
		return 0, err
	}
	if err := m.resume(ctx); err != nil {
		return 0, err
	}
	if m.is.Store == to {
		return 0, m.unclaim(ctx)
	}
	if err := m.store.free(ctx, m.directory, to); err != nil {
		return 0, err
	}
	from := m.is.Store
	source, err := m.store.at(ctx, m.c, from)
	if err != nil {
		return 0, err
	}
	taken, err := anyBelow(ctx, target.mvcc, m.directory)
	if err != nil {
		return 0, err
	}
	if taken {
		return 0, m.adopt(ctx, source.mvcc, target.mvcc, to)
	}
	if err := m.claim(ctx, to); err != nil {
		return 0, err
	}
	if err := m.record(ctx, from, to, 0); err != nil {
		return 0, err
	}
	// Objects that are written before the fence are moved, too.
	head, err := source.mvcc.Fence(ctx)
	if err != nil {
		return 0, err
	}
	some, err := anyBelow(ctx, source.mvcc, m.directory)
	if err == nil && some {
		moved, err = m.copy(ctx, source.mvcc, target.mvcc, head)
	} else if err == nil {
		_, err = target.mvcc.FenceBeyond(ctx, head)
	}
	if err == nil {
		err = eachBelow(ctx, source.mvcc, m.directory, func(page []mvcc.KeyValue) error {
			return notNewer(page, head)
		})
	}
	if err != nil {
		return 0, err
	}
	if err := m.record(ctx, to, from, head); err != nil {
		return 0, err
	}
	return moved, m.tidy(ctx)
}

// adopt records a store that has such objects of its own as their place, if there are no others.
// From its record on nobody serves them, until the one that ends it.
func (m *move) adopt(ctx context.Context, source, target *mvcc.Engine, to string) error {
	from := m.is.Store
	both := fmt.Errorf("both the store %q and the store %q have some: name another store, or "+
		"delete those in one of the two, by `rowkeeper etcd` and a client of etcd", from, to)
	// What is newer than that is not overlooked.
	head, err := source.Head(ctx)
	if err != nil {
		return err
	}
	if some, err := anyBelow(ctx, source, m.directory); err != nil {
		return err
	} else if some {
		return both
	}
	if err := m.claim(ctx, to); err != nil {
		return err
	}
	if _, err := target.FenceBeyond(ctx, head); err != nil {
		return err
	}
	if err := m.record(ctx, to, from, head); err != nil {
		return err
	}
	some, err := written(ctx, source, m.directory)
	switch {
	case err != nil:
		return err
	case some:
		return errors.Join(both, m.record(ctx, from, "", 0))
	}
	return m.record(ctx, to, "", 0)
}

// written fences a store in which the objects below a directory are no more, as is recorded, and
// tells whether it has any. A server that has not heard of the record may have written them, before
// the fence. After it, none does; see move.
func written(ctx context.Context, s *mvcc.Engine, directory contract.Key) (bool, error) {
	if _, err := s.Fence(ctx); err != nil {
		return false, err
	}
	return anyBelow(ctx, s, directory)
}

// resume ends a move that was interrupted. It may have been interrupted before its fence. If it was
// a server that began to record another place, objects that were written meanwhile are valid, and
// the record is taken back.
func (m *move) resume(ctx context.Context) error {
	if m.is.Also != "" && m.is.Copied > 0 {
		also, err := m.store.at(ctx, m.c, m.is.Also)
		if err != nil {
			return err
		}
		late, err := written(ctx, also.mvcc, m.directory)
		switch {
		case err != nil:
			return err
		case late && m.is.begun():
			return m.record(ctx, m.is.Also, "", 0)
		}
	}
	return m.tidy(ctx)
}

// tidy ends a move that was interrupted, where the objects are. It deletes the others only if there
// are any: if the store that is recorded was lost meanwhile, the others are all that there is.
func (m *move) tidy(ctx context.Context) error {
	if m.is.Also == "" {
		return nil
	}
	valid, err := m.store.at(ctx, m.c, m.is.Store)
	if err != nil {
		return err
	}
	also, err := m.store.at(ctx, m.c, m.is.Also)
	if err != nil {
		return err
	}
	some, err := anyBelow(ctx, valid.mvcc, m.directory)
	if err != nil {
		return err
	}
	if !some {
		if some, err = anyBelow(ctx, also.mvcc, m.directory); err != nil {
			return err
		} else if some {
			return fmt.Errorf("the store %q, in which they are recorded to be, has none of them, and "+
				"the store %q has some: copy those that shall be kept into the first one, or, if none "+
				"shall be kept, delete those in the second one, by `rowkeeper etcd` and a client of "+
				"etcd, and repeat the move", m.is.Store, m.is.Also)
		}
	}
	if err := removeAll(ctx, also.mvcc, m.directory, m.is.Copied); err != nil {
		return err
	}
	return m.record(ctx, m.is.Store, "", 0)
}

// record records where the objects are, and what else is not valid.
func (m *move) record(ctx context.Context, store, also string,
	copied contract.Revision) (err error) {
	m.is.Store, m.is.Also, m.is.Copied, m.is.Claims = store, also, copied, ""
	m.r, err = m.r.write(ctx, m.store.mvcc, m.store.placements.own, m.directory, m.is)
	return changed(err)
}

// claim claims the store to which the objects are moved.
func (m *move) claim(ctx context.Context, to string) (err error) {
	m.r, err = m.store.claim(ctx, m.r, m.directory, m.is, to)
	return changed(err)
}

// unclaim takes back a claim that was left behind.
func (m *move) unclaim(ctx context.Context) error {
	if m.is.Claims == "" {
		return nil
	}
	return m.record(ctx, m.is.Store, "", 0)
}

// changed says of a conflict who is in the way.
func changed(err error) error {
	if conflict := (*contract.ConflictError)(nil); errors.As(err, &conflict) {
		return errors.New("another move or a server that starts has changed the record of the stores " +
			"of resources: stop it, and repeat the move")
	}
	return err
}

// copy puts what the source holds below the directory into the target. It fails if any of that is
// newer than head.
func (m *move) copy(ctx context.Context, source, target *mvcc.Engine,
	head contract.Revision) (copied int64, err error) {
	id, err := source.Identity(ctx)
	if err != nil {
		return 0, err
	}
	imp := &contract.Import{Store: id.Store, Head: head, Beside: true}
	imp.Records = func(each func(*contract.Record) error) error {
		copied = 0
		begin := func(context.Context, contract.State, int64, []contract.LeaseRow) error { return nil }
		return source.Export(ctx, begin, func(r *contract.Record) error {
			switch {
			case !strings.HasPrefix(string(r.Key), string(m.directory)):
				return nil
			case r.Revision > head:
				return writtenMeanwhile(r.Key)
			case r.Lease != 0:
				return fmt.Errorf("%s is attached to a lease of etcd's API, which stays where it is: "+
					"write it without the lease first", r.Key)
			}
			copied++
			moved := *r
			moved.Value = slices.Clone(r.Value)
			return each(&moved)
		})
	}
	_, err = target.Import(ctx, imp)
	return copied, err
}

// removedAtOnce is how many objects are deleted at a time: a commit group.
const removedAtOnce = 256

// eachBelow calls f with what is below a directory, without the values, page by page. Each page is
// read after f has returned for the one before.
func eachBelow(ctx context.Context, s *mvcc.Engine, directory contract.Key,
	f func(page []mvcc.KeyValue) error) error {
	o := mvcc.RangeOptions{Start: directory, End: contract.PrefixEnd(directory), Limit: removedAtOnce,
		KeysOnly: true}
	for {
		page, err := s.Range(ctx, o)
		if err != nil {
			return err
		}
		if len(page.KVs) > 0 {
			if err := f(page.KVs); err != nil {
				return err
			}
		}
		if !page.More {
			return nil
		}
		o.From = After(page.KVs[len(page.KVs)-1].Key)
	}
}

func writtenMeanwhile(key contract.Key) error {
	return fmt.Errorf("%s was written meanwhile: stop all servers, and repeat the move", key)
}

func notNewer(page []mvcc.KeyValue, than contract.Revision) error {
	for _, kv := range page {
		if kv.Revision > than {
			return writtenMeanwhile(kv.Key)
		}
	}
	return nil
}

// removeAll deletes what is below a directory, unless it is newer than the revision copied. If that
// is 0, nothing is newer.
func removeAll(ctx context.Context, s *mvcc.Engine, directory contract.Key,
	copied contract.Revision) error {
	return eachBelow(ctx, s, directory, func(page []mvcc.KeyValue) error {
		deletions, ctx := errgroup.WithContext(ctx)
		for _, kv := range page {
			deletions.Go(func() error { return removeOne(ctx, s, kv, copied) })
		}
		if err := deletions.Wait(); err != nil {
			return fmt.Errorf("cannot delete the objects below %s: %w", directory, err)
		}
		return nil
	})
}

func removeOne(ctx context.Context, s *mvcc.Engine, kv mvcc.KeyValue, copied contract.Revision) error {
	if copied > 0 && kv.Revision > copied {
		return fmt.Errorf("%s was written after it was copied, by a server that ran: stop all "+
			"servers, save what it holds in the old store and delete it there, by `rowkeeper etcd` "+
			"and a client of etcd, and repeat the move", kv.Key)
	}
	_, err := s.Commit(ctx, contract.Mutation{Key: kv.Key, Expect: kv.Revision, Delete: true})
	if conflict := (*contract.ConflictError)(nil); !errors.As(err, &conflict) {
		return err
	}
	now, _, err := s.Get(ctx, kv.Key)
	if err != nil || now == nil { // it has expired
		return err
	}
	return removeOne(ctx, s, *now, copied)
}
