package database

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

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// The objects of some resources can be kept in another store than the rest, so that a flood of them
// has commits and a history of its own. [Open] is told which. The database records it in its own
// store, in one key that no object can have. The record holds:
//
//   - A server that is told otherwise does not serve the resource. A server that runs when the
//     place is recorded hears of it, as of any other write, and closes the database.
//   - A server that serves a resource from another store for the first time records that, if
//     neither store has such an object. Of several who do so at once, one does.
//   - [MoveResource] moves the objects and the record. A move is recorded before it begins and
//     after it has ended, and nobody serves the resource in between.
//   - A backup is not restored if it would undo what is recorded.
//   - No two stores record the same other store for a directory: each claims it before it records
//     it, and reads the records of all stores in between. This is asked once, when a place is
//     recorded. A place that is recorded is never asked again, so that nothing which another store
//     records can keep a server from running. The record of a store goes with the store, so one
//     that was dropped is in nobody's way, and what claims or keeps the place of one that is not
//     used any more is moved back by MoveResource.
//
// So a server looks for the objects of a resource where they are. A server may run without the
// assignment while another one records it. Until it hears of that, it would write objects where
// nobody looks for them any more. So the record says at first that the objects are being moved; the
// store where they would be is fenced; and if there is one by then, the record is taken back. Why
// that is enough: see move.
//
// All this is among programs that follow the record. `rowkeeper etcd` does not: it has no
// resources, and its clients may want to see any key. What they write below a directory that is
// kept elsewhere, no server finds.
//
// A resource's other store is fenced beyond the history of the old one before it is recorded. So a
// client that resumes at a revision of the old one is told that it has expired.

// placementKey is the key of the record. The keys of objects begin with a slash.
const placementKey contract.Key = contract.Reserved + "stores-of-resources"

// placements says which resources a database keeps in other stores.
type placements struct {
	// own is the name of the database's own store, and others are the open other ones.
	own     string
	others  map[string]*Store
	timeout time.Duration
	// shared are the connections of all of them, until disconnect is called.
	shared     contract.Database
	disconnect func() error
	// asked are the stores of resources that are not kept in the database's own, as configured.
	asked map[string]string

	mu sync.Mutex
	// known is the newest record that this process knows of.
	known record
	// served are the directories that this process serves, and where.
	served map[contract.Key]placement
	// misplaced is why the database was closed, nil if it was not. moved is closed then.
	misplaced error
	moved     chan struct{}
	// unfollow ends what follows the record, nil if nothing does.
	unfollow func()
}

// placement says where the objects below a directory are.
type placement struct {
	// Prefix and Resource are those of which the directory is, in the form of flags.
	Prefix   string `json:"prefix"`
	Resource string `json:"resource"`
	Store    string `json:"store"`
	// Also is the other store of a move that has not ended. The objects that it holds below the
	// directory are not valid.
	Also string `json:"also,omitempty"`
	// Claims is the other store that is to be recorded as Store, while it is found out whether that
	// may be. It says nothing of where the objects are. If it is Store, there were no objects, and
	// what is still to be found out is whether somebody has written one to Also.
	Claims string `json:"claims,omitempty"`
	// Copied is the revision of Also up to which everything is in Store, too. It is 0 while Also
	// holds nothing but copies.
	Copied contract.Revision `json:"copied,omitempty"`
}

// check returns an error if the directory is not that of the resource, or a name is not valid.
func (p placement) check(directory contract.Key) error {
	if _, _, err := SplitResource(p.Resource); err != nil {
		return err
	}
	if there := Directory(p.Prefix, p.Resource); there != directory {
		return fmt.Errorf("the objects of %s are below %s there, and not below %s", p.Resource,
			there, directory)
	}
	err := CheckStoreName(p.Store)
	for _, store := range []string{p.Also, p.Claims} {
		if store != "" {
			err = errors.Join(err, CheckStoreName(store))
		}
	}
	return err
}

// usual tells whether the objects are in the own store, and are not being moved.
func (p placement) usual(own string) bool {
	return (p.Store == own || p.Store == "") && p.Also == ""
}

// begun tells whether somebody has begun to record another place for what is in the own store.
func (p placement) begun() bool { return p.Also != "" && p.Claims == p.Store }

// needs tells whether a store keeps the objects, or may do so soon.
func (p placement) needs(store string) bool {
	return p.Store == store || p.Also == store || p.Claims == store
}

// record lists the directories whose objects are in another store, or are being moved.
type record struct {
	places map[contract.Key]placement
	// revision is that of the key, 0 if there is none. The record was current at the revision at.
	revision, at contract.Revision
}

func readRecord(ctx context.Context, s *mvcc.Engine) (record, error) {
	kv, head, err := s.Get(ctx, placementKey)
	switch {
	case err != nil:
		return record{}, err
	case kv == nil:
		return record{at: head}, nil
	}
	return recordAt(kv.Value, kv.Revision, head)
}

// recordAt is what the key of the record holds, which is current at the head.
func recordAt(value []byte, revision, head contract.Revision) (record, error) {
	r, err := parseRecord(value)
	r.revision, r.at = revision, head
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
		return record{}, contract.Errorf(contract.Invalid, "the record of the stores of resources, in the key %q, "+
			"cannot be read: restore a backup of each store into a new database: %w",
			string(placementKey), err)
	}
	return r, nil
}

// write records where a directory is, unless somebody has changed the record since it was read, and
// returns the new one.
func (r record) write(ctx context.Context, s *mvcc.Engine, own string, directory contract.Key,
	p placement) (record, error) {
	places := maps.Clone(r.places)
	if places == nil {
		places = map[contract.Key]placement{}
	}
	if places[directory] = p; p.usual(own) && p.Claims == "" {
		delete(places, directory)
	}
	value, err := json.Marshal(places)
	if err != nil {
		return r, err
	}
	m := contract.Mutation{Key: placementKey, Expect: r.revision, Value: value}
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

// SplitResource splits the name of a resource, group/resource, or resource for one of the core
// group. In this package resources have such names, as in flags.
func SplitResource(name string) (group, resource string, err error) {
	group, resource, found := strings.Cut(name, "/")
	if !found {
		group, resource = "", name
	}
	if resource == "" || found && strings.Trim(group, ".") == "" ||
		strings.ContainsAny(resource, "/.") {
		return "", "", fmt.Errorf("%q does not name a resource as group/resource does, such as "+
			"coordination.k8s.io/leases", name)
	}
	return group, resource, nil
}

// at returns a store of the database by its name, and opens it if it is not open. It closes with
// the database.
func (s *Store) at(ctx context.Context, c Config, name string) (*Store, error) {
	if name == s.placements.own {
		return s, nil
	}
	if other := s.placements.others[name]; other != nil {
		return other, nil
	}
	if err := CheckStoreName(name); err != nil {
		return nil, err
	}
	c.Store = name
	other, err := c.openAnother(ctx, s.placements.shared)
	if err != nil {
		return nil, fmt.Errorf("store %q: %w", name, err)
	}
	s.placements.others[name] = other
	return other, nil
}

// all are the open stores, the own one first, the others by their names.
func (s *Store) all() []*Store {
	list := []*Store{s}
	for _, name := range slices.Sorted(maps.Keys(s.placements.others)) {
		list = append(list, s.placements.others[name])
	}
	return list
}

// assign opens the other stores, and reads what is recorded.
func (s *Store) assign(ctx context.Context, c Config, storeFor map[string]string) error {
	for _, resource := range slices.Sorted(maps.Keys(storeFor)) {
		store := storeFor[resource]
		other, err := s.at(ctx, c, store)
		if err != nil {
			return fmt.Errorf("the objects of %s cannot be kept elsewhere: %w", resource, err)
		}
		if other != s {
			s.placements.asked[resource] = store
		}
	}
	// It has to come before the record is read; see move.
	for _, other := range s.all() {
		other.mvcc.BeforeAdopting(s.hear)
	}
	known, err := readRecord(ctx, s.mvcc)
	if err != nil {
		return sentence("open the database", err)
	}
	s.placements.known = known
	return nil
}

// storeOf is where the objects of a resource are kept as configured.
func (pl *placements) storeOf(resource string) string {
	if store, ok := pl.asked[resource]; ok {
		return store
	}
	return pl.own
}

// compare refuses to keep in a store what is placed elsewhere, or is being moved.
func (pl *placements) compare(p placement, store string) error {
	right := fmt.Sprintf("give --store-for %s=%s", p.Resource, p.Store)
	if p.Store == pl.own {
		right = "leave --store-for out"
	}
	switch {
	case p.Also != "" && (p.Store == store || !p.begun()):
		return fmt.Errorf("the objects of %s are being moved between the stores %q and %q: wait "+
			"until that has ended, or end it by %s", p.Resource, p.Store, p.Also,
			p.moveTo(store, pl.own))
	case p.Store != store:
		return fmt.Errorf("the objects of %s are kept in the store %q, not in %q: %s, or move them "+
			"while no server runs, by %s", p.Resource, p.Store, store, right,
			p.moveTo(store, pl.own))
	}
	return nil
}

// moveTo is the command that moves what is placed to another store.
func (p placement) moveTo(store, own string) string {
	command := fmt.Sprintf("rowkeeper stores move %s --to %s", p.Resource, store)
	if own != contract.DefaultStore {
		command += " --store " + own
	}
	if p.Prefix != DefaultPrefix {
		command += " --storage-prefix " + p.Prefix
	}
	return "`" + command + "`"
}

// Agrees returns an error if what is configured for a prefix is not what is recorded. It also finds
// resources that are served later, such as those of CustomResourceDefinitions.
func Agrees(s *Store, prefix string) error {
	pl := &s.placements
	pl.mu.Lock()
	defer pl.mu.Unlock()
	for _, directory := range slices.Sorted(maps.Keys(pl.known.places)) {
		p := pl.known.places[directory]
		if p.Prefix != path.Join("/", prefix) || p.usual(pl.own) ||
			p.begun() && p.Store == pl.storeOf(p.Resource) {
			continue
		}
		if err := pl.compare(p, pl.storeOf(p.Resource)); err != nil {
			return err
		}
	}
	return nil
}

// EngineFor returns the history of the store in which the objects of a resource are kept, below a
// directory. It records that, if it is not the own one and not recorded yet.
func EngineFor(s *Store, resource, prefix string, directory contract.Key) (*mvcc.Engine, error) {
	pl := &s.placements
	store := pl.storeOf(resource)
	p := placement{Prefix: path.Join("/", prefix), Resource: resource, Store: store}
	pl.mu.Lock()
	if pl.unfollow == nil {
		pl.unfollow = s.follow(pl.known)
	}
	r := pl.known
	pl.mu.Unlock()
	if is := r.places[directory]; store == pl.own || !is.usual(pl.own) && !is.begun() {
		return pl.serve(s, r, directory, p)
	}
	if err := p.check(directory); err != nil {
		return nil, fmt.Errorf("the objects of %s cannot be kept in the store %q: %w", p.Resource,
			store, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), pl.timeout)
	defer cancel()
	r, err := s.record(ctx, directory, p)
	if err != nil {
		return nil, err
	}
	return pl.serve(s, r, directory, p)
}

// serve notes that a directory is served from where it is placed, unless the record says otherwise.
func (pl *placements) serve(s *Store, r record, directory contract.Key,
	p placement) (*mvcc.Engine, error) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if r.at > pl.known.at {
		pl.known = r
	}
	recorded, ok := pl.known.places[directory]
	if !ok {
		recorded = p
		recorded.Store = pl.own
	}
	if err := pl.compare(recorded, p.Store); err != nil {
		return nil, err
	}
	pl.served[directory] = p
	if p.Store == pl.own {
		return s.mvcc, nil
	}
	return pl.others[p.Store].mvcc, nil
}

// record records where a directory is that is not as usual, unless there are objects. It goes on
// where another process has ended.
func (s *Store) record(ctx context.Context, directory contract.Key, p placement) (record, error) {
	other := s.placements.others[p.Store]
	for {
		r, err := readRecord(ctx, s.mvcc)
		if err != nil {
			return r, err
		}
		switch is := r.places[directory]; {
		case is.begun() && is.Store == p.Store:
		case !is.usual(s.placements.own):
			return r, nil
		default:
			r, err = s.begin(ctx, r, directory, p, other.mvcc)
		}
		if err == nil {
			r, err = s.settle(ctx, r, directory, p)
		}
		// Another process may do the same, and has written or fenced.
		if conflict := (*contract.ConflictError)(nil); !errors.As(err, &conflict) &&
			!errors.Is(err, mvcc.ErrOtherEra) && !errors.Is(err, errRecorded) {
			return r, err
		}
	}
}

// errRecorded says that another process has changed the record.
var errRecorded = errors.New("the record has changed")

// begin records that a directory is about to be in another store, if neither has any objects of it.
func (s *Store) begin(ctx context.Context, r record, directory contract.Key, p placement,
	other *mvcc.Engine) (record, error) {
	here := p
	here.Store = s.placements.own
	// What is newer than that is not overlooked.
	head, err := s.mvcc.Head(ctx)
	if err != nil {
		return r, err
	}
	switch some, err := anyBelow(ctx, s.mvcc, directory); {
	case err != nil:
		return r, err
	case some:
		return r, s.placements.compare(here, p.Store)
	}
	if err := s.free(ctx, directory, p.Store); err != nil {
		return r, err
	}
	switch some, err := anyBelow(ctx, other, directory); {
	case err != nil:
		return r, err
	case some:
		// Or another process has recorded the place meanwhile, and has served it.
		if now, err := readRecord(ctx, s.mvcc); err != nil {
			return r, err
		} else if now.revision != r.revision {
			return r, errRecorded
		}
		return r, fmt.Errorf("the store %q has objects of %s that it was not given by the store "+
			"%q: name another store, or, if they are meant, run %s", p.Store, p.Resource,
			s.placements.own, p.moveTo(p.Store, s.placements.own))
	}
	if r, err = s.claim(ctx, r, directory, here, p.Store); err != nil {
		return r, err
	}
	if st, err := other.State(ctx); err != nil {
		return r, err
	} else if st.Compacted <= head {
		if _, err := other.FenceBeyond(ctx, head); err != nil {
			return r, err
		}
	}
	p.Also, p.Copied, p.Claims = s.placements.own, head, p.Store
	return r.write(ctx, s.mvcc, s.placements.own, directory, p)
}

// settle ends what begin has begun. If somebody has written an object meanwhile, it is taken back.
func (s *Store) settle(ctx context.Context, r record, directory contract.Key,
	p placement) (record, error) {
	late, err := written(ctx, s.mvcc, directory)
	if err != nil {
		return r, err
	}
	if !late {
		return r.write(ctx, s.mvcc, s.placements.own, directory, p)
	}
	here := p
	here.Store = s.placements.own
	if r, err = r.write(ctx, s.mvcc, s.placements.own, directory, here); err != nil {
		return r, err
	}
	return r, s.placements.compare(here, p.Store)
}

// claim makes sure that no other store of the database keeps the objects of a directory in the
// store to, nor is about to: the next record after the one that is returned may name it. It records
// in the own store what it is about, and then reads the records of all stores. Of two that do so at
// the same time, the one that reads last finds the other, and takes its claim back. Perhaps both
// do. Nobody serves anything by a claim, so no server that runs notices. One that is left behind,
// since its process ended, keeps others from the store until the resource is recorded or moved.
//
// The caller has asked [Store.free] before. So a claim or record that has stood for long is found
// before a new claim leaves a trace.
func (s *Store) claim(ctx context.Context, r record, directory contract.Key, is placement,
	to string) (record, error) {
	if r.places[directory].Claims != to {
		var err error
		is.Claims = to
		if r, err = r.write(ctx, s.mvcc, s.placements.own, directory, is); err != nil {
			return r, err
		}
	}
	err := s.free(ctx, directory, to)
	if taken := (*takenError)(nil); errors.As(err, &taken) {
		is.Claims = ""
		_, back := r.write(ctx, s.mvcc, s.placements.own, directory, is)
		if conflict := (*contract.ConflictError)(nil); !errors.As(back, &conflict) {
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
func (s *Store) free(ctx context.Context, directory contract.Key, store string) error {
	records, err := s.mvcc.Everywhere(ctx, placementKey)
	if err != nil {
		return err
	}
	delete(records, s.placements.own)
	return eachRecord(records, func(own string, r record) error {
		p := r.places[directory]
		if !p.needs(store) {
			return nil
		}
		return &takenError{fmt.Sprintf("the store %q keeps the objects of %s of the store %q, and "+
			"those of the store %q would be mixed up with them: name another store, or move the "+
			"others away by %s", store, p.Resource, own, s.placements.own, p.moveTo(own, own))}
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

func anyBelow(ctx context.Context, s *mvcc.Engine, directory contract.Key) (bool, error) {
	found, err := s.Range(ctx, mvcc.RangeOptions{Start: directory, End: contract.PrefixEnd(directory),
		Limit: 1, KeysOnly: true})
	return err == nil && len(found.KVs) > 0, err
}

// learn takes a newer record, and returns an error if the process serves what is elsewhere by now.
func (pl *placements) learn(r record) error {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if pl.misplaced != nil || r.at <= pl.known.at {
		return pl.misplaced
	}
	pl.known = r
	for _, directory := range slices.Sorted(maps.Keys(pl.served)) {
		p := pl.served[directory]
		recorded, ok := r.places[directory]
		if !ok {
			recorded = p
			recorded.Store = pl.own
		}
		if err := pl.compare(recorded, p.Store); err != nil {
			pl.misplaced = err
			close(pl.moved)
			return err
		}
	}
	return nil
}

// hear learns what is recorded before one of the stores goes over to a new epoch; see move. If this
// process serves what is elsewhere by now, the store stays behind, where nothing can be written or
// read, until what follows the record has closed the database.
func (s *Store) hear(ctx context.Context) error {
	row, head, err := s.mvcc.Peek(ctx, placementKey)
	if err != nil {
		return err
	}
	r := record{at: head}
	if row != nil {
		if r, err = recordAt(row.Value, row.Revision, head); err != nil {
			return err
		}
	}
	if err := s.placements.learn(r); err != nil {
		return fmt.Errorf("%w: %w", contract.ErrClosed, err)
	}
	return nil
}

// closed is why the database was closed, nil if nobody has closed it but its owner.
func (pl *placements) closed() error {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return pl.misplaced
}

// followPause is the longest pause between two attempts to follow the record.
const followPause = 10 * time.Second

// follow learns what is recorded after the record, until it is told to end. If this process serves
// what is elsewhere by then, it closes the database: what it would write, nobody would find.
func (s *Store) follow(from record) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	pauses := backoff.NewExponentialBackOff()
	pauses.MaxInterval = followPause
	go func() { // what is heard before the store goes over to a new epoch comes by no watch
		select {
		case <-s.placements.moved:
			cancel()
		case <-ctx.Done():
		}
	}()
	go func() {
		defer close(done)
		_, _ = backoff.Retry(ctx, func() (struct{}, error) {
			err := s.followFrom(ctx, from)
			if s.placements.closed() != nil || errors.Is(err, contract.ErrClosed) ||
				errors.Is(err, contract.ErrDropped) || errors.Is(err, contract.ErrAnotherStore) {
				return struct{}{}, backoff.Permanent(err)
			}
			from = record{} // to be read
			return struct{}{}, err
		}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0))
		err := s.placements.closed()
		if err == nil {
			return
		}
		s.log.Error("the database is closed, since objects that this server serves are elsewhere: "+
			"stop the server, and start it as the error says", "err", err)
		if err := s.closeOthers(); err != nil {
			s.log.Error("the database did not close well", "err", err)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// followFrom follows until the watch ends, or the record cannot be read.
func (s *Store) followFrom(ctx context.Context, r record) (err error) {
	if r.at == 0 {
		if r, err = readRecord(ctx, s.mvcc); err != nil {
			return err
		}
		if err := s.placements.learn(r); err != nil {
			return err
		}
	}
	w, err := s.mvcc.Watch(ctx, mvcc.WatchOptions{Key: placementKey, After: r.at})
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
			if err := s.placements.learn(r); err != nil {
				return err
			}
		}
	}
}

// keeps returns an error if a record in a backup says otherwise than what is recorded: objects
// would be lost, or nobody would find them.
func (s *Store) keeps(ctx context.Context, value []byte) error {
	kept, err := parseRecord(value)
	if err != nil {
		return err
	}
	now, err := readRecord(ctx, s.mvcc)
	if err != nil {
		return err
	}
	both := map[contract.Key]placement{}
	maps.Copy(both, kept.places)
	maps.Copy(both, now.places)
	for _, directory := range slices.Sorted(maps.Keys(both)) {
		p, in := both[directory], s.placements.own
		if was, ok := kept.places[directory]; ok {
			in = was.Store
		}
		if _, ok := now.places[directory]; !ok {
			p.Store, p.Also = s.placements.own, ""
		}
		if p.Store != in || p.Also != "" {
			return fmt.Errorf("the objects of %s are in the store %q, and the backup has them in %q: "+
				"move them there first, by %s", p.Resource, p.Store, in,
				p.moveTo(in, s.placements.own))
		}
	}
	return nil
}

// Alone returns an error if a store holds the objects of resources of another store, or another one
// holds some of its own.
func Alone(ctx context.Context, name string, b contract.Backend) error {
	records, _, err := b.Everywhere(ctx, placementKey)
	if err != nil {
		return err
	}
	if r, err := parseRecord(records[name]); err != nil {
		return err
	} else if len(r.places) > 0 {
		p := r.places[slices.Min(slices.Collect(maps.Keys(r.places)))]
		return fmt.Errorf("the store %q keeps the objects of %s in another store of its database: move "+
			"them back first, by %s", name, p.Resource, p.moveTo(name, name))
	}
	return Unneeded(ctx, name, b)
}

// Unneeded returns an error if a store holds the objects of resources of another store.
func Unneeded(ctx context.Context, name string, b contract.Backend) error {
	records, _, err := b.Everywhere(ctx, placementKey)
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
