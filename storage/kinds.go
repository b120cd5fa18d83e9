package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/rowkeeper/rowkeeper/storage/internal/access"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// The objects of some resources can be kept in another store than the rest, so that a flood of them
// has commits and a history of its own. Config.StoreFor says which. The database records it in its
// own store, in one key that no object can have. What is recorded holds:
//
//   - Who is told otherwise does not serve the resource. A server that runs when it is recorded
//     hears of it, as of any other write, and closes the database.
//   - Who serves a resource from another store for the first time records it, if neither store has
//     such an object. Of several who do so at once, one does.
//   - [MoveResource] moves the objects and the record. A move is recorded before it begins and
//     after it has ended, and nobody serves the resource in between.
//   - A backup is not restored if it would undo what is recorded.
//   - No two stores record the same other store for a directory: each claims it before it records
//     it, and reads the records of all stores in between. This is asked once, when a place is
//     recorded. Who is recorded is never asked again, so that nothing which another store records
//     can keep it from running. The record of a store goes with the store, so one that was dropped
//     is in nobody's way, and what claims or keeps the place of one that is not used any more is
//     moved back by MoveResource.
//
// So a server looks for the objects of a resource where they are. The one exception is a server
// that runs without the assignment while another one records it: until it hears of that, it may
// write objects where nobody looks for them any more.
//
// A resource's other store is fenced beyond the history of the old one before it is recorded. So a
// client that resumes at a revision of the old one is told that it has expired.

// kindsKey is the key of the record. The keys of objects begin with a slash.
const kindsKey mvcc.Key = mvcc.Reserved + "stores-of-resources"

// kinds says which resources a database keeps in other stores.
type kinds struct {
	// own is the name of the database's own store, and others are the open other ones.
	own     string
	others  map[string]*Database
	timeout time.Duration
	// shared are the connections of all of them, until disconnect is called.
	shared     mvcc.Database
	disconnect func() error
	// asked are the stores of resources that are not kept in the database's own, as configured.
	asked map[schema.GroupResource]string

	mu sync.Mutex
	// known is the newest record that this process knows of.
	known record
	// served are the directories that this process serves, and where.
	served map[mvcc.Key]placed
	// misplaced is why the database was closed, nil if it was not.
	misplaced error
	// unfollow ends what follows the record, nil if nothing does.
	unfollow func()
}

// placed says where the objects below a directory are.
type placed struct {
	// Prefix and Resource are those of which the directory is, in the form of flags.
	Prefix   string `json:"prefix"`
	Resource string `json:"resource"`
	Store    string `json:"store"`
	// Also is the other store of a move that has not ended. What it holds below the directory is
	// not valid.
	Also string `json:"also,omitempty"`
	// Claims is the other store that is to be recorded as Store, while it is found out whether that
	// may be. It says nothing of where the objects are.
	Claims string `json:"claims,omitempty"`
	// Copied is the revision of Also up to which everything is in Store, too. It is 0 while Also
	// holds nothing but copies.
	Copied mvcc.Revision `json:"copied,omitempty"`
}

// check returns an error if the directory is not that of the resource, or a name is not valid.
func (p placed) check(directory mvcc.Key) error {
	_, err := ParseResource(p.Resource)
	if err != nil {
		return err
	}
	keys, err := newKeySpace(p.Prefix, "/"+p.Resource)
	if err != nil {
		return err
	}
	if keys.all() != directory {
		return fmt.Errorf("the objects of %s are below %s there, and not below %s", p.Resource,
			keys.all(), directory)
	}
	err = CheckStoreName(p.Store)
	for _, store := range []string{p.Also, p.Claims} {
		if store != "" {
			err = errors.Join(err, CheckStoreName(store))
		}
	}
	return err
}

// usual tells whether the objects are in the own store, and are not being moved.
func (p placed) usual(own string) bool {
	return (p.Store == own || p.Store == "") && p.Also == ""
}

// needs tells whether a store keeps the objects, or may do so soon.
func (p placed) needs(store string) bool {
	return p.Store == store || p.Also == store || p.Claims == store
}

// record lists the directories whose objects are in another store, or are being moved.
type record struct {
	places map[mvcc.Key]placed
	// revision is that of the key, 0 if there is none. The record was current at the revision at.
	revision, at mvcc.Revision
}

func readRecord(ctx context.Context, s *mvcc.Store) (record, error) {
	kv, head, err := s.Get(ctx, kindsKey)
	switch {
	case err != nil:
		return record{}, err
	case kv == nil:
		return record{at: head}, nil
	}
	r, err := parseRecord(kv.Value)
	r.revision, r.at = kv.Revision, head
	return r, err
}

func parseRecord(value []byte) (r record, err error) {
	if len(value) == 0 {
		return r, nil
	}
	err = json.Unmarshal(value, &r.places)
	for directory, p := range r.places {
		err = errors.Join(err, p.check(directory))
	}
	if err != nil {
		return record{}, mvcc.Errorf(mvcc.Invalid, "the record of the stores of resources, in the key %q, "+
			"cannot be read: restore a backup: %w", string(kindsKey), err)
	}
	return r, nil
}

// write records where a directory is, unless somebody has changed the record since it was read, and
// returns the new one.
func (r record) write(ctx context.Context, s *mvcc.Store, own string, directory mvcc.Key,
	p placed) (record, error) {
	places := maps.Clone(r.places)
	if places == nil {
		places = map[mvcc.Key]placed{}
	}
	if places[directory] = p; p.usual(own) && p.Claims == "" {
		delete(places, directory)
	}
	value, err := json.Marshal(places)
	if err != nil {
		return r, err
	}
	m := mvcc.Mutation{Key: kindsKey, Expect: r.revision, Value: value}
	if len(places) == 0 {
		if r.revision == 0 {
			return r, nil
		}
		m.Value, m.Delete = nil, true
	}
	revision, err := s.Commit(ctx, m)
	if r = (record{places: places, revision: revision, at: revision}); m.Delete {
		r.revision = 0
	}
	return r, err
}

// resourceName is how a resource is named in flags.
func resourceName(r schema.GroupResource) string {
	if r.Group == "" {
		return r.Resource
	}
	return r.Group + "/" + r.Resource
}

// ParseResource parses the form group/resource, or resource for one of the core group.
func ParseResource(s string) (schema.GroupResource, error) {
	group, resource, found := strings.Cut(s, "/")
	if !found {
		group, resource = "", s
	}
	if resource == "" || found && group == "" || strings.ContainsAny(resource, "/.") {
		return schema.GroupResource{}, fmt.Errorf("%q does not name a resource as group/resource "+
			"does, such as coordination.k8s.io/leases", s)
	}
	return schema.GroupResource{Group: group, Resource: resource}, nil
}

// at returns a store of the database by its name, and opens it if it is not open. It closes with
// the database.
func (d *Database) at(ctx context.Context, c Config, name string) (*Database, error) {
	if name == d.kinds.own {
		return d, nil
	}
	if other := d.kinds.others[name]; other != nil {
		return other, nil
	}
	if err := CheckStoreName(name); err != nil {
		return nil, err
	}
	c.Store, c.StoreFor = name, nil
	other, err := c.openAnother(ctx, d.kinds.shared)
	if err != nil {
		return nil, fmt.Errorf("store %q: %w", name, err)
	}
	d.kinds.others[name] = other
	return other, nil
}

// all are the open stores, the own one first, the others by their names.
func (d *Database) all() []*Database {
	list := []*Database{d}
	for _, name := range slices.Sorted(maps.Keys(d.kinds.others)) {
		list = append(list, d.kinds.others[name])
	}
	return list
}

// assign opens the other stores, and reads what is recorded.
func (d *Database) assign(ctx context.Context, c Config) error {
	byName := func(a, b schema.GroupResource) int {
		return strings.Compare(resourceName(a), resourceName(b))
	}
	for _, resource := range slices.SortedFunc(maps.Keys(c.StoreFor), byName) {
		store := c.StoreFor[resource]
		other, err := d.at(ctx, c, store)
		if err != nil {
			return fmt.Errorf("the objects of %s cannot be kept elsewhere: %w",
				resourceName(resource), err)
		}
		if other != d {
			d.kinds.asked[resource] = store
		}
	}
	known, err := readRecord(ctx, d.mvcc)
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	d.kinds.known = known
	return nil
}

// storeOf is where the objects of a resource are kept as configured.
func (k *kinds) storeOf(resource schema.GroupResource) string {
	if store, ok := k.asked[resource]; ok {
		return store
	}
	return k.own
}

// compare refuses to keep in a store what is placed elsewhere, or is being moved.
func (k *kinds) compare(p placed, store string) error {
	right := fmt.Sprintf("give --store-for %s=%s", p.Resource, p.Store)
	if p.Store == k.own {
		right = "leave --store-for out"
	}
	switch {
	case p.Also != "":
		return fmt.Errorf("the objects of %s are being moved between the stores %q and %q: wait "+
			"until that has ended, or end it by %s", p.Resource, p.Store, p.Also,
			p.moveTo(store, k.own))
	case p.Store != store:
		return fmt.Errorf("the objects of %s are kept in the store %q, not in %q: %s, or move them "+
			"while no server runs, by %s", p.Resource, p.Store, store, right,
			p.moveTo(store, k.own))
	}
	return nil
}

// moveTo is the command that moves what is placed to another store.
func (p placed) moveTo(store, own string) string {
	command := fmt.Sprintf("rowkeeper stores move %s --to %s", p.Resource, store)
	if own != mvcc.DefaultStore {
		command += " --store " + own
	}
	if p.Prefix != DefaultPrefix {
		command += " --storage-prefix " + p.Prefix
	}
	return "`" + command + "`"
}

// agrees returns an error if what is configured for a prefix is not what is recorded. It also finds
// resources that are served later, such as those of CustomResourceDefinitions.
func (d *Database) agrees(prefix string) error {
	k := &d.kinds
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, directory := range slices.Sorted(maps.Keys(k.known.places)) {
		p := k.known.places[directory]
		if p.Prefix != path.Join("/", prefix) || p.usual(k.own) {
			continue
		}
		resource, err := ParseResource(p.Resource)
		if err == nil {
			err = k.compare(p, k.storeOf(resource))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// of returns the store in which the objects of a resource are kept. It records that, if it is not
// the own one and not recorded yet.
func (d *Database) of(resource schema.GroupResource, keys keySpace) (*Database, error) {
	k := &d.kinds
	store := k.storeOf(resource)
	p := placed{Prefix: path.Clean(keys.prefix), Resource: resourceName(resource), Store: store}
	k.mu.Lock()
	if k.unfollow == nil {
		k.unfollow = d.follow(k.known)
	}
	r := k.known
	k.mu.Unlock()
	if store == k.own || !r.places[keys.all()].usual(k.own) {
		return k.serve(d, r, keys.all(), p)
	}
	if err := p.check(keys.all()); err != nil {
		return nil, fmt.Errorf("the objects of %s cannot be kept in the store %q: %w", p.Resource,
			store, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), k.timeout)
	defer cancel()
	r, err := d.record(ctx, keys.all(), p)
	if err != nil {
		return nil, err
	}
	return k.serve(d, r, keys.all(), p)
}

// serve notes that a directory is served from where it is placed, unless the record says otherwise.
func (k *kinds) serve(d *Database, r record, directory mvcc.Key, p placed) (*Database, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r.at > k.known.at {
		k.known = r
	}
	recorded, ok := k.known.places[directory]
	if !ok {
		recorded = p
		recorded.Store = k.own
	}
	if err := k.compare(recorded, p.Store); err != nil {
		return nil, err
	}
	k.served[directory] = p
	if p.Store == k.own {
		return d, nil
	}
	return k.others[p.Store], nil
}

// record records where a directory is that is not as usual, unless there are objects.
func (d *Database) record(ctx context.Context, directory mvcc.Key, p placed) (record, error) {
	other := d.kinds.others[p.Store]
	for {
		r, err := readRecord(ctx, d.mvcc)
		if err != nil {
			return r, err
		}
		if !r.places[directory].usual(d.kinds.own) {
			return r, nil
		}
		here := p
		here.Store = d.kinds.own
		switch some, err := anyBelow(ctx, d.mvcc, directory); {
		case err != nil:
			return r, err
		case some:
			return r, d.kinds.compare(here, p.Store)
		}
		if err := d.free(ctx, directory, p.Store); err != nil {
			return r, err
		}
		switch some, err := anyBelow(ctx, other.mvcc, directory); {
		case err != nil:
			return r, err
		case some:
			return r, fmt.Errorf("the store %q has objects of %s that it was not given by the store "+
				"%q: name another store, or, if they are meant, run %s", p.Store, p.Resource,
				d.kinds.own, p.moveTo(p.Store, d.kinds.own))
		}
		r, err = d.claim(ctx, r, directory, here, p.Store)
		if conflict := (*mvcc.ConflictError)(nil); errors.As(err, &conflict) {
			continue
		} else if err != nil {
			return r, err
		}
		head, err := d.mvcc.Head(ctx)
		if err != nil {
			return r, err
		}
		if st, err := other.mvcc.State(ctx); err != nil {
			return r, err
		} else if st.Compacted <= head {
			if _, err := other.mvcc.FenceBeyond(ctx, head); err != nil {
				return r, err
			}
		}
		r, err = r.write(ctx, d.mvcc, d.kinds.own, directory, p)
		if conflict := (*mvcc.ConflictError)(nil); !errors.As(err, &conflict) {
			return r, err
		}
	}
}

// claim makes sure that no other store of the database keeps the objects of a directory in the
// store to, nor is about to: the next record after the one that is returned may name it. It records
// in the own store what it is about, and then reads the records of all stores. Of two that do so at
// the same time, the one that reads last finds the other, and takes its claim back. Perhaps both
// do. Nobody serves anything by a claim, so nobody who runs notices. One that is left behind, since
// its process ended, keeps others from the store until the resource is recorded or moved.
//
// Who calls it has asked [Database.free] before, so that what has stood for long is found without a
// trace.
func (d *Database) claim(ctx context.Context, r record, directory mvcc.Key, is placed,
	to string) (record, error) {
	if r.places[directory].Claims != to {
		var err error
		is.Claims = to
		if r, err = r.write(ctx, d.mvcc, d.kinds.own, directory, is); err != nil {
			return r, err
		}
	}
	err := d.free(ctx, directory, to)
	if taken := (*takenError)(nil); errors.As(err, &taken) {
		is.Claims = ""
		_, back := r.write(ctx, d.mvcc, d.kinds.own, directory, is)
		if conflict := (*mvcc.ConflictError)(nil); !errors.As(back, &conflict) {
			err = errors.Join(err, back)
		}
	}
	return r, err
}

// takenError says that a store cannot keep objects, since it keeps those of another one.
type takenError struct{ text string }

func (e *takenError) Error() string { return e.text }

// free returns a takenError if another store of the database keeps the objects of a directory in a
// store, or is about to. Records of dropped stores do not count.
func (d *Database) free(ctx context.Context, directory mvcc.Key, store string) error {
	records, err := d.mvcc.Everywhere(ctx, kindsKey)
	if err != nil {
		return err
	}
	delete(records, d.kinds.own)
	return eachRecord(records, func(own string, r record) error {
		p := r.places[directory]
		if !p.needs(store) {
			return nil
		}
		return &takenError{fmt.Sprintf("the store %q keeps the objects of %s of the store %q, and "+
			"those of the store %q would be mixed up with them: name another store, or move the "+
			"others away by %s", store, p.Resource, own, d.kinds.own, p.moveTo(own, own))}
	})
}

// eachRecord calls f for the records of several stores, until it returns an error.
func eachRecord(records map[string][]byte, f func(own string, r record) error) error {
	for _, own := range slices.Sorted(maps.Keys(records)) {
		r, err := parseRecord(records[own])
		if err != nil {
			return fmt.Errorf("store %q: %w", own, err)
		}
		if err := f(own, r); err != nil {
			return err
		}
	}
	return nil
}

func anyBelow(ctx context.Context, s *mvcc.Store, directory mvcc.Key) (bool, error) {
	found, err := s.Range(ctx, mvcc.RangeOptions{Start: directory, End: prefixEnd(directory),
		Limit: 1, KeysOnly: true})
	return err == nil && len(found.KVs) > 0, err
}

// learn takes a newer record, and returns an error if the process serves what is elsewhere by now.
func (k *kinds) learn(r record) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r.at <= k.known.at {
		return nil
	}
	k.known = r
	for _, directory := range slices.Sorted(maps.Keys(k.served)) {
		p := k.served[directory]
		recorded, ok := r.places[directory]
		if !ok {
			recorded = p
			recorded.Store = k.own
		}
		if err := k.compare(recorded, p.Store); err != nil {
			k.misplaced = err
			return err
		}
	}
	return nil
}

// closed is why the database was closed, nil if nobody has closed it but its owner.
func (k *kinds) closed() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.misplaced
}

// followPause is the longest pause between two attempts to follow the record.
const followPause = 10 * time.Second

// follow learns what is recorded after the record, until it is told to end. If this process serves
// what is elsewhere by then, it closes the database: what it would write, nobody would find.
func (d *Database) follow(from record) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	pauses := backoff.NewExponentialBackOff()
	pauses.MaxInterval = followPause
	go func() {
		defer close(done)
		_, err := backoff.Retry(ctx, func() (struct{}, error) {
			err := d.followFrom(ctx, from)
			if d.kinds.closed() != nil || errors.Is(err, mvcc.ErrClosed) ||
				errors.Is(err, mvcc.ErrDropped) || errors.Is(err, mvcc.ErrAnotherStore) {
				return struct{}{}, backoff.Permanent(err)
			}
			from = record{} // to be read
			return struct{}{}, err
		}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0))
		if d.kinds.closed() == nil {
			return
		}
		d.log.Error("the database is closed, since objects that this server serves are elsewhere: "+
			"stop the server, and start it as the error says", "err", err)
		if err := d.closeStores(); err != nil {
			d.log.Error("the database did not close well", "err", err)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// followFrom follows until the watch ends, or the record cannot be read.
func (d *Database) followFrom(ctx context.Context, r record) (err error) {
	if r.at == 0 {
		if r, err = readRecord(ctx, d.mvcc); err != nil {
			return err
		}
		if err := d.kinds.learn(r); err != nil {
			return err
		}
	}
	w, err := d.mvcc.Watch(ctx, mvcc.WatchOptions{Key: kindsKey, After: r.at})
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		batch, err := w.Next(ctx)
		if err != nil {
			return err
		}
		for _, e := range batch.Events {
			r, err := parseRecord(e.Value)
			if err != nil {
				return err
			}
			r.at = e.Revision
			if !e.Deleted {
				r.revision = e.Revision
			}
			if err := d.kinds.learn(r); err != nil {
				return err
			}
		}
	}
}

// MoveResource moves the objects of a resource to another store, from where they are, and records
// that. The prefix is that of the servers (RESTOptions.Prefix, default [DefaultPrefix]). The
// objects are below it, in the directory group/resource. No server may run meanwhile: one that
// serves the resource all the same closes the database. A store is refused in which a third one
// keeps its objects of the resource.
//
// The objects keep their UIDs and the times at which they expire. They get new resourceVersions if
// the other store was ever written. Its history is fenced beyond that of the first one, so that
// clients that resume begin anew. A move that was interrupted is ended by the next one, to whatever
// store. A store that has objects of the resource is refused, unless there are none to move. Then
// it is recorded as their place.
func MoveResource(ctx context.Context, c Config, prefix string, resource schema.GroupResource,
	to string) (moved int64, err error) {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	name := resourceName(resource)
	keys, err := newKeySpace(prefix, "/"+name)
	if err != nil {
		return 0, err
	}
	c = c.withDefaults()
	c.Compaction.Window = -1
	d, err := openOne(ctx, c)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	m := move{d: d, c: c, directory: keys.all(), is: placed{Prefix: path.Clean(keys.prefix),
		Resource: name, Store: d.kinds.own}}
	if moved, err = m.run(ctx, to); err != nil {
		return 0, fmt.Errorf("the objects of %s were not moved: %w", name, err)
	}
	return moved, nil
}

// move is a move of the objects below a directory. It takes these steps, each of which can be the
// last one if it is interrupted:
//
//  1. The record says that the objects are moved between the two stores, and are still where they
//     were. From here on nobody serves them who has heard of it.
//  2. All objects are put into the other store, in one transaction.
//  3. The record says that they are there, and still moved.
//  4. They are deleted where they were.
//  5. The record says that nothing is moved any more.
//
// What is in the store that the record names besides the objects' own is not valid: after 1 and 2
// it is the copies, after 3 the originals. The next move deletes it first. The other store had no
// such objects before 1. If it has, and there are none to move, its objects are not copies: the
// record names it in one step, and nothing is deleted.
//
// A server that has not heard of 1 may still write where the objects were. Before 3, the move finds
// that and stops. After 3, it deletes no object that is newer than the copy, and stops there.
type move struct {
	d         *Database
	c         Config
	directory mvcc.Key
	r         record
	// is what the record says of the directory.
	is placed
}

func (m *move) run(ctx context.Context, to string) (moved int64, err error) {
	if m.r, err = readRecord(ctx, m.d.mvcc); err != nil {
		return 0, err
	}
	if p, ok := m.r.places[m.directory]; ok {
		m.is = p
	}
	target, err := m.d.at(ctx, m.c, to)
	if err != nil {
		return 0, err
	}
	if err := m.tidy(ctx); err != nil {
		return 0, err
	}
	if m.is.Store == to {
		return 0, m.unclaim(ctx)
	}
	if err := m.d.free(ctx, m.directory, to); err != nil {
		return 0, err
	}
	from := m.is.Store
	source, err := m.d.at(ctx, m.c, from)
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
	// What is written before the servers hear of it is moved, too.
	head, err := source.mvcc.Head(ctx)
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
func (m *move) adopt(ctx context.Context, source, target *mvcc.Store, to string) error {
	from := m.is.Store
	both := fmt.Errorf("both the store %q and the store %q have some: name another store, or "+
		"delete those in one of the two", from, to)
	if some, err := anyBelow(ctx, source, m.directory); err != nil {
		return err
	} else if some {
		return both
	}
	if err := m.claim(ctx, to); err != nil {
		return err
	}
	head, err := source.Head(ctx)
	if err != nil {
		return err
	}
	if _, err := target.FenceBeyond(ctx, head); err != nil {
		return err
	}
	if err := m.record(ctx, to, "", 0); err != nil {
		return err
	}
	// A server that had not heard of it may have written.
	some, err := anyBelow(ctx, source, m.directory)
	if err == nil && some {
		err = errors.Join(both, m.record(ctx, from, "", 0))
	}
	return err
}

// tidy ends a move that was interrupted, where the objects are. It deletes the others only if there
// are any: if the store that is recorded was lost meanwhile, the others are all that there is.
func (m *move) tidy(ctx context.Context) error {
	if m.is.Also == "" {
		return nil
	}
	valid, err := m.d.at(ctx, m.c, m.is.Store)
	if err != nil {
		return err
	}
	also, err := m.d.at(ctx, m.c, m.is.Also)
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
				"the store %q has some: restore a backup of the first one, or, if none of them shall "+
				"be kept, delete those in the second one", m.is.Store, m.is.Also)
		}
	}
	if err := removeAll(ctx, also.mvcc, m.directory, m.is.Copied); err != nil {
		return err
	}
	return m.record(ctx, m.is.Store, "", 0)
}

// record records where the objects are, and what else is not valid.
func (m *move) record(ctx context.Context, store, also string,
	copied mvcc.Revision) (err error) {
	m.is.Store, m.is.Also, m.is.Copied, m.is.Claims = store, also, copied, ""
	m.r, err = m.r.write(ctx, m.d.mvcc, m.d.kinds.own, m.directory, m.is)
	return changed(err)
}

// claim claims the store to which the objects are moved.
func (m *move) claim(ctx context.Context, to string) (err error) {
	m.r, err = m.d.claim(ctx, m.r, m.directory, m.is, to)
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
	if conflict := (*mvcc.ConflictError)(nil); errors.As(err, &conflict) {
		return errors.New("another move or a server that starts has changed the record of the stores " +
			"of resources: stop it, and repeat the move")
	}
	return err
}

// copy puts what the source holds below the directory into the target. It fails if any of that is
// newer than head.
func (m *move) copy(ctx context.Context, source, target *mvcc.Store,
	head mvcc.Revision) (copied int64, err error) {
	id, err := source.Identity(ctx)
	if err != nil {
		return 0, err
	}
	imp := &mvcc.Import{Store: id.Store, Head: head, Beside: true}
	imp.Records = func(each func(*mvcc.Record) error) error {
		copied = 0
		begin := func(context.Context, mvcc.State, int64, []mvcc.LeaseRow) error { return nil }
		return source.Export(ctx, begin, func(r *mvcc.Record) error {
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
func eachBelow(ctx context.Context, s *mvcc.Store, directory mvcc.Key,
	f func(page []mvcc.KeyValue) error) error {
	o := mvcc.RangeOptions{Start: directory, End: prefixEnd(directory), Limit: removedAtOnce,
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
		o.From = after(page.KVs[len(page.KVs)-1].Key)
	}
}

func writtenMeanwhile(key mvcc.Key) error {
	return fmt.Errorf("%s was written meanwhile: stop all servers, and repeat the move", key)
}

func notNewer(page []mvcc.KeyValue, than mvcc.Revision) error {
	for _, kv := range page {
		if kv.Revision > than {
			return writtenMeanwhile(kv.Key)
		}
	}
	return nil
}

// removeAll deletes what is below a directory, unless it is newer than the revision copied. If that
// is 0, nothing is newer.
func removeAll(ctx context.Context, s *mvcc.Store, directory mvcc.Key,
	copied mvcc.Revision) error {
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

func removeOne(ctx context.Context, s *mvcc.Store, kv mvcc.KeyValue, copied mvcc.Revision) error {
	if copied > 0 && kv.Revision > copied {
		return fmt.Errorf("%s was written after it was copied, by a server that ran: stop all "+
			"servers, save what it holds in the old store and delete it there, by `rowkeeper etcd` "+
			"and a client of etcd, and repeat the move", kv.Key)
	}
	_, err := s.Commit(ctx, mvcc.Mutation{Key: kv.Key, Expect: kv.Revision, Delete: true})
	if conflict := (*mvcc.ConflictError)(nil); !errors.As(err, &conflict) {
		return err
	}
	now, _, err := s.Get(ctx, kv.Key)
	if err != nil || now == nil { // it has expired
		return err
	}
	return removeOne(ctx, s, *now, copied)
}

// keeps returns an error if a record in a backup says otherwise than what is recorded: objects
// would be lost, or nobody would find them.
func (d *Database) keeps(ctx context.Context, value []byte) error {
	kept, err := parseRecord(value)
	if err != nil {
		return err
	}
	now, err := readRecord(ctx, d.mvcc)
	if err != nil {
		return err
	}
	both := map[mvcc.Key]placed{}
	maps.Copy(both, kept.places)
	maps.Copy(both, now.places)
	for _, directory := range slices.Sorted(maps.Keys(both)) {
		p, in := both[directory], d.kinds.own
		if was, ok := kept.places[directory]; ok {
			in = was.Store
		}
		if _, ok := now.places[directory]; !ok {
			p.Store, p.Also = d.kinds.own, ""
		}
		if p.Store != in || p.Also != "" {
			return fmt.Errorf("the objects of %s are in the store %q, and the backup has them in %q: "+
				"move them there first, by %s", p.Resource, p.Store, in,
				p.moveTo(in, d.kinds.own))
		}
	}
	return nil
}

// unneeded returns an error if a store holds the objects of resources of another store.
func unneeded(ctx context.Context, name string, b mvcc.Backend) error {
	records, _, err := b.Everywhere(ctx, kindsKey)
	if err != nil {
		return err
	}
	return eachRecord(records, func(own string, r record) error {
		for _, directory := range slices.Sorted(maps.Keys(r.places)) {
			if p := r.places[directory]; p.needs(name) && (own != name || !p.usual(own)) {
				return fmt.Errorf("the store %q keeps the objects of %s of the store %q: move them "+
					"first, by %s", name, p.Resource, own, p.moveTo(own, own))
			}
		}
		return nil
	})
}

func init() {
	access.Histories = func(database any) (list []*mvcc.Store) {
		for _, d := range database.(*Database).all() {
			list = append(list, d.mvcc)
		}
		return list
	}
}
