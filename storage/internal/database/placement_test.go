package database

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// aDatabase has the stores "default", "fast" and "other".
type aDatabase struct {
	*testing.T
	config Config
}

func withStores(t *testing.T, d dbtest.DB) aDatabase {
	t.Helper()
	db := aDatabase{t, Config{URL: d.URL, Drivers: []contract.Driver{d.Driver}, Migrate: true}}
	for _, name := range []string{"fast", "other"} {
		c := db.config
		c.Store = name
		if _, err := CreateStore(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	return db
}

// assigned are the stores of resources, of which pods have one, "" for none that is named.
func assigned(store string) map[string]string {
	if store == "" {
		return nil
	}
	return map[string]string{"pods": store}
}

// openAs opens a store of the database, of which pods are in another one.
func (d aDatabase) openAs(own, store string) *Store {
	d.Helper()
	c := d.config
	c.Store = own
	db, err := Open(d.Context(), c, assigned(store))
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { d.close(db) })
	return db
}

func (d aDatabase) open(store string) *Store {
	d.Helper()
	return d.openAs("", store)
}

func (d aDatabase) close(store *Store) {
	d.Helper()
	if err := store.Close(); err != nil {
		d.Error(err)
	}
}

// refused: pods are not served from the store, and the error says the words.
func (d aDatabase) refused(store string, words ...string) {
	d.Helper()
	db := d.open(store)
	defer d.close(db)
	_, err := serve(db)
	d.says(err, words...)
}

func (d aDatabase) says(err error, words ...string) {
	d.Helper()
	if err == nil {
		d.Errorf("there is no error that says %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			d.Errorf("%q does not say %q", err, w)
		}
	}
}

// count counts the pods in a store.
func (d aDatabase) count(store string) int64 {
	d.Helper()
	n, _, err := d.backend(store).Count(d.Context(), podsHere, contract.PrefixEnd(podsHere), 0, 0)
	if err != nil {
		d.Fatal(err)
	}
	return n
}

func (d aDatabase) move(to string, want int64) {
	d.Helper()
	n, err := MoveResource(d.Context(), d.config, "", "pods", to)
	if err != nil || n != want {
		d.Fatalf("moved %d objects to %s, want %d, %v", n, to, want, err)
	}
}

// backend opens a store as another process would.
func (d aDatabase) backend(store string) contract.Backend {
	d.Helper()
	c := d.config.withDefaults()
	c.Store = store
	b, err := contract.OpenBackend(d.Context(), c.Drivers[0], c.URL, c.driverOptions())
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() {
		if err := b.Close(); err != nil {
			d.Error(err)
		}
	})
	return b
}

// TestMoveIsInterrupted: after each of its steps, no server serves the objects, and they are all
// there after the move was repeated, or taken back.
func TestMoveIsInterrupted(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		x := withStores(t, d)
		db := x.open("")
		for _, name := range []string{"a", "b"} {
			create(t, pods(t, db), name)
		}
		x.close(db)
		at := "default"
		for steps := 1; steps <= 4; steps++ {
			for _, to := range []string{"fast", "default", "other"}[:2+steps/4] {
				from, next := at, "fast"
				if from == next {
					next = "default"
				}
				x.interrupt(next, steps)
				x.refused(to, "being moved between the stores",
					"rowkeeper stores move pods --to "+to)
				if _, err := MoveResource(t.Context(), x.config, "", "pods", to); err != nil {
					t.Fatalf("from %s to %s after %d steps, then to %s: %v", from, next, steps,
						to, err)
				}
				at = to
				for _, store := range []string{"default", "fast", "other"} {
					want := int64(0)
					if store == to {
						want = 2
					}
					if n := x.count(store); n != want {
						t.Fatalf("from %s to %s after %d steps, then to %s: %s has %d pods", from,
							next, steps, to, store, n)
					}
				}
				db := x.open(to)
				if n := len(list(t, pods(t, db))); n != 2 {
					t.Errorf("%d pods are served from %s", n, to)
				}
				x.close(db)
			}
		}
	})
}

// interrupt does the first steps of a move.
func (d aDatabase) interrupt(to string, steps int) {
	d.Helper()
	ctx := d.Context()
	own, err := openOne(ctx, d.config.withDefaults())
	if err != nil {
		d.Fatal(err)
	}
	defer d.close(own)
	m := move{store: own, c: d.config.withDefaults(), directory: podsHere,
		is: placement{Prefix: "/registry", Resource: "pods", Store: "default"}}
	if m.r, err = readRecord(ctx, own.mvcc); err != nil {
		d.Fatal(err)
	}
	if p, ok := m.r.places[m.directory]; ok {
		m.is = p
	}
	from := m.is.Store
	source, err := own.at(ctx, m.c, from)
	if err != nil {
		d.Fatal(err)
	}
	target, err := own.at(ctx, m.c, to)
	if err != nil {
		d.Fatal(err)
	}
	var head contract.Revision
	for _, step := range []func() error{
		func() error { return m.record(ctx, from, to, 0) },
		func() (err error) {
			if head, err = source.mvcc.Fence(ctx); err == nil {
				_, err = m.copy(ctx, source.mvcc, target.mvcc, head)
			}
			return err
		},
		func() error { return m.record(ctx, to, from, head) },
		func() error { return removeAll(ctx, source.mvcc, m.directory, head) },
	}[:steps] {
		if err := step(); err != nil {
			d.Fatal(err)
		}
	}
}

// TestMoveLosesNothing: a store that has such objects of its own is not moved into, and is recorded
// as their place only if there are no others.
func TestMoveLosesNothing(t *testing.T) {
	x := withStores(t, dbtest.Open(t, dbtest.SQLite))
	tenant := x.config
	tenant.Store = "fast"
	for _, c := range []Config{x.config, tenant} {
		db, err := Open(t.Context(), c, nil)
		if err != nil {
			t.Fatal(err)
		}
		create(t, pods(t, db), "a")
		x.close(db)
	}
	_, err := MoveResource(t.Context(), x.config, "", "pods", "fast")
	x.says(err, `both the store "default" and the store "fast" have some`, "`rowkeeper etcd`")
	for _, store := range []string{"default", "fast"} {
		if n := x.count(store); n != 1 {
			t.Errorf("%s has %d pods", store, n)
		}
	}
	db := x.open("")
	remove(t, pods(t, db), "a")
	x.close(db)
	x.refused("fast", "objects of pods that it was not given",
		"rowkeeper stores move pods --to fast`")
	db = x.open("")
	head, err := db.mvcc.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	x.close(db)
	x.move("fast", 0)
	// What is there is never recorded as not valid, which an interrupted move leaves to be deleted.
	log, err := x.backend("").Tail(t.Context(), head+1, 100, contract.PrevOfDeletions)
	if err != nil {
		t.Fatal(err)
	}
	last := placement{}
	for _, row := range log.Rows {
		if row.Key != placementKey {
			continue
		}
		r, err := parseRecord(row.Value)
		if err != nil || r.places[podsHere].Also == "fast" {
			t.Fatalf("the move has recorded %s, %v", row.Value, err)
		}
		last = r.places[podsHere]
	}
	if last.Store != "fast" || last.Also != "" {
		t.Errorf("the move has recorded %+v last", last)
	}
	db = x.open("fast")
	if n := len(list(t, pods(t, db))); n != 1 {
		t.Errorf("there are %d pods", n)
	}
	_, err = MoveResource(t.Context(), x.config, "", "pods", "unknown")
	x.says(err, `no store "unknown"`)
}

// write writes or deletes a key of the database's own store, as a server does that has not heard of
// a move.
func (d aDatabase) write(m contract.Mutation) {
	d.Helper()
	store := d.open("")
	defer d.close(store)
	if m.Expect = contract.Any; !m.Delete {
		m.Value = []byte(`{}`)
	}
	if _, err := store.mvcc.Commit(d.Context(), m); err != nil {
		d.Fatal(err)
	}
}

// TestMoveKeepsWhatIsNewer: what a server writes that has not heard of the move is not deleted when
// it was not copied.
func TestMoveKeepsWhatIsNewer(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		x := withStores(t, d)
		store := x.open("")
		create(t, pods(t, store), "a")
		x.close(store)
		x.interrupt("fast", 3)
		x.write(contract.Mutation{Key: "/registry/pods/ns/late"})
		_, err := MoveResource(t.Context(), x.config, "", "pods", "fast")
		x.says(err, "/registry/pods/ns/late was written after it was copied", "`rowkeeper etcd`")
		if n := x.count("fast"); n != 1 {
			t.Errorf("%d pods were copied", n)
		}
		x.refused("fast", "being moved")
		x.write(contract.Mutation{Key: "/registry/pods/ns/late", Delete: true})
		x.move("fast", 0)
		if here, there := x.count("default"), x.count("fast"); here != 0 || there != 1 {
			t.Errorf("there are %d pods where they were, and %d where they are", here, there)
		}
	})
}

// TestMoveKeepsTheLastCopy: if a store loses the objects while a move is interrupted, those in the
// other store are not deleted, though they are not valid.
func TestMoveKeepsTheLastCopy(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		for steps, lost := range map[int]string{2: "default", 3: "fast"} {
			x := withStores(t, d)
			store := x.open("")
			create(t, pods(t, store), "a")
			x.close(store)
			x.interrupt("fast", steps)
			s, err := mvcc.Open(t.Context(), x.backend(lost), mvcc.Config{})
			if err != nil {
				t.Fatal(err)
			}
			if err := removeAll(t.Context(), s, podsHere, 0); err != nil {
				t.Fatal(err)
			}
			for _, to := range []string{"default", "fast"} {
				_, err := MoveResource(t.Context(), x.config, "", "pods", to)
				x.says(err, lost+`", in which they are recorded to be, has none of them`,
					"copy those that shall be kept into the first one", "repeat the move")
			}
			if here, there := x.count("default"), x.count("fast"); here+there != 1 {
				t.Errorf("after %d steps and a loss there are %d and %d pods", steps, here, there)
			}
			commit(t, s, contract.Mutation{Key: podKey("a"), Value: []byte(`{}`)})
			moved := map[string]int64{"default": 1}[lost]
			x.move("fast", moved)
			if here, there := x.count("default"), x.count("fast"); here != 0 || there != 1 {
				t.Errorf("after the copy, there are %d and %d pods", here, there)
			}
			d = dbtest.Open(t, d.Kind)
		}
	})
}

// TestRecordIsChecked: a record that is not of this program's making is not followed.
func TestRecordIsChecked(t *testing.T) {
	for _, text := range []string{
		"-",
		`{"/registry/secrets/":{"prefix":"/registry","resource":"pods","store":"fast"}}`,
		`{"":{"prefix":"/registry","resource":"pods","store":"fast"}}`,
		`{"/registry/":{"prefix":"/","resource":"registry/","store":"fast"}}`,
		`{"/registry/../pods/":{"prefix":"/registry","resource":"../pods","store":"fast"}}`,
		`{podsHere:{"prefix":"/registry","resource":"pods","store":"../fast"}}`,
		`{podsHere:{"prefix":"/registry","resource":"pods","store":""}}`,
		`{podsHere:{"prefix":"/registry","resource":"pods","store":"fast","also":"-"}}`,
	} {
		if r, err := parseRecord([]byte(text)); err == nil ||
			!strings.Contains(err.Error(), "cannot be read: restore a backup of each store into a new database") {
			t.Errorf("%s is taken as %v, %v", text, r.places, err)
		}
	}
}

// ofOther has pods of the store "other" in another one.
func (d aDatabase) ofOther(store string) *Store {
	d.Helper()
	return d.openAs("other", store)
}

// recordOf is what a database has recorded of pods, and its revision.
func (d aDatabase) recordOf(store *Store) (record, placement) {
	d.Helper()
	r, err := readRecord(d.Context(), store.mvcc)
	if err != nil {
		d.Fatal(err)
	}
	return r, r.places[podsHere]
}

// TestStoreForIsOfOneStore: two stores do not keep the objects of a resource in the same third one.
// Who came first is not disturbed, and who came later is told what to do.
func TestStoreForIsOfOneStore(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		x := withStores(t, d)
		taken := []string{`the store "fast" keeps the objects of pods of the store "default"`,
			"name another store", "rowkeeper stores move pods --to default`"}
		store := x.open("fast")
		s := pods(t, store)
		created := create(t, s, "a")
		w := watch(t, s, created)
		other := x.ofOther("fast")
		_, err := serve(other)
		x.says(err, taken...)
		if r, _ := x.recordOf(other); r.revision != 0 {
			t.Errorf("who is refused has recorded %+v", r)
		}
		b, err := EngineFor(other, "pods", "/b", "/b/pods/")
		if err != nil {
			t.Fatal(err)
		}
		commit(t, b, contract.Mutation{Key: "/b/pods/ns/b"})
		x.close(other)
		other = x.ofOther("")
		create(t, pods(t, other), "own")
		x.close(other)
		ofOther := x.config
		ofOther.Store = "other"
		move := func(to string) error {
			_, err := MoveResource(t.Context(), ofOther, "", "pods", to)
			return err
		}
		x.says(move("fast"), taken...)
		if n := x.count("other"); n != 1 {
			t.Errorf("a move that was refused has left %d pods", n)
		}
		// A store is taken when the claim is about to be recorded.
		other = x.ofOther("")
		here := placement{Prefix: "/registry", Resource: "pods", Store: "other"}
		r, _ := x.recordOf(other)
		_, err = other.claim(t.Context(), r, podsHere, here, "fast")
		x.says(err, taken...)
		if _, p := x.recordOf(other); p != (placement{}) {
			t.Errorf("a claim that was refused has left %+v", p)
		}
		create(t, s, "c")
		if batch, err := w.Next(t.Context()); err != nil || len(batch.Events) != 1 ||
			batch.Events[0].Key != podKey("c") {
			t.Errorf("the watch has %v, %v", batch.Events, err)
		}

		// When the first one has left, the second one may come, whatever the first one still says.
		x.close(store)
		x.move("default", 2)
		x.close(other)
		if err := move("fast"); err != nil {
			t.Error(err)
		}
		x.says(move("default"), `both the store "fast" and the store "default" have some`)
		_, err = MoveResource(t.Context(), x.config, "", "pods", "fast")
		x.says(err, `the store "fast" keeps the objects of pods of the store "other"`,
			"rowkeeper stores move pods --to other --store other`")
		_, err = DropStore(t.Context(), ofOther)
		if err != nil {
			t.Error(err)
		}
		store = x.open("")
		remove(t, pods(t, store), "a")
		remove(t, pods(t, store), "c")
		x.close(store)
		// What the dropped store has left does not belong to it any more.
		x.refused("fast", "objects of pods that it was not given")
		x.move("fast", 0)
		store = x.open("fast")
		if n := len(list(t, pods(t, store))); n != 1 {
			t.Errorf("there are %d pods", n)
		}
	})
}

// TestClaimOfStore: a claim keeps others from a store, and nobody from serving what was served
// before. Who claims goes on with it, even if it was left behind by another process.
func TestClaimOfStore(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		x := withStores(t, d)
		runs := x.open("")
		s := pods(t, runs)
		other := x.ofOther("")
		here := placement{Prefix: "/registry", Resource: "pods", Store: "other", Claims: "fast"}
		claim := func() {
			t.Helper()
			r, _ := x.recordOf(other)
			if _, err := r.write(t.Context(), other.mvcc, "other", podsHere, here); err != nil {
				t.Fatal(err)
			}
		}
		claim()
		if err := Agrees(x.ofOther("fast"), DefaultPrefix); err != nil {
			t.Error(err)
		}
		pods(t, other)
		create(t, s, "a")
		remove(t, s, "a")
		x.refused("fast", `the store "fast" keeps the objects of pods of the store "other"`,
			"rowkeeper stores move pods --to other --store other`")
		ofOther := x.config
		ofOther.Store = "other"
		if n, err := MoveResource(t.Context(), ofOther, "", "pods", "other"); err != nil || n != 0 {
			t.Errorf("%d, %v", n, err)
		}
		if _, p := x.recordOf(other); p != (placement{}) {
			t.Errorf("after the claim was taken back, %+v is recorded", p)
		}
		claim()
		other = x.ofOther("fast")
		pods(t, other)
		if _, p := x.recordOf(other); p.Store != "fast" || p.Claims != "" {
			t.Errorf("%+v is recorded", p)
		}
		if err := runs.Ready(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestStoreForRace: of two stores that record the same other one at the same time, one does at
// most, and who is refused leaves nothing behind.
func TestStoreForRace(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		x := withStores(t, d)
		dbs := []*Store{x.open("fast"), x.ofOther("fast")}
		for round := range 10 {
			resource := fmt.Sprintf("kind%d", round)
			p := placement{Prefix: "/registry", Resource: resource, Store: "fast"}
			directory := contract.Key("/registry/" + resource + "/")
			var errs [2]error
			var wg sync.WaitGroup
			for i, store := range dbs {
				wg.Go(func() { _, errs[i] = store.record(t.Context(), directory, p) })
			}
			wg.Wait()
			for i, store := range dbs {
				r, err := readRecord(t.Context(), store.mvcc)
				if err != nil {
					t.Fatal(err)
				}
				_, recorded := r.places[directory]
				if taken := (*takenError)(nil); recorded != (errs[i] == nil) ||
					errs[i] != nil && !errors.As(errs[i], &taken) {
					t.Errorf("round %d: %+v is recorded, and the error is %v", round, r.places, errs[i])
				}
			}
			if errs[0] == nil && errs[1] == nil {
				t.Fatalf("round %d: both have recorded the same store", round)
			}
		}
	})
}

// TestRestoreKeepsStoreFor: a backup is not restored that would undo what is recorded. One that
// says the same is, and a server goes on with it.
func TestRestoreKeepsStoreFor(t *testing.T) {
	x := withStores(t, dbtest.Open(t, dbtest.SQLite))
	backup := func(store *Store) *bytes.Reader {
		t.Helper()
		var b bytes.Buffer
		if _, err := store.WriteBackup(t.Context(), &b, nil); err != nil {
			t.Fatal(err)
		}
		return bytes.NewReader(b.Bytes())
	}
	restore := func(store *Store, b *bytes.Reader) error {
		if _, err := b.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		_, _, err := store.RestoreBackup(t.Context(), b, RestoreOptions{Replace: true})
		return err
	}
	plain := x.open("")
	before := backup(plain)
	x.close(plain)
	store := x.open("fast")
	r := pods(t, store)
	create(t, r, "a")
	after := backup(store)
	x.says(restore(store, before), "nothing was restored",
		`pods are in the store "fast", and the backup has them in "default"`,
		"rowkeeper stores move pods --to default`")
	if err := restore(store, after); err != nil {
		t.Error(err)
	}
	// A scratch database has no such store, and is opened again by somebody who knows of none.
	scratch := dbtest.Open(t, dbtest.SQLite)
	first := openDatabase(t, scratch, noCompaction)
	x.says(restore(first, after), "nothing was restored", `pods are in the store "default"`)
	if _, err := after.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if _, _, err := first.RestoreBackup(t.Context(), after, RestoreOptions{Scratch: true}); err != nil {
		t.Error(err)
	}
	x.close(first)
	if _, err := after.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if c, err := openDatabase(t, scratch, noCompaction).CompareBackup(t.Context(), after,
		nil); err != nil || c.Same != c.Backup.Objects {
		t.Errorf("%+v, %v", c, err)
	}
	create(t, r, "b")
	if n := len(list(t, r)); n != 2 {
		t.Errorf("there are %d pods", n)
	}
	x.close(store)
	x.refused("", `kept in the store "fast"`)
	x.move("default", 2)
	store = x.open("")
	x.says(restore(store, after), "nothing was restored",
		`pods are in the store "default", and the backup has them in "fast"`,
		"rowkeeper stores move pods --to fast`")
	if err := restore(store, before); err != nil {
		t.Error(err)
	}
}

// lateWrite is a driver. Just before the record of a place is committed, a server that has not
// heard of it writes a pod to the default store, once.
func (d aDatabase) lateWrite(driver contract.Driver) (late contract.Driver, wrote func() bool) {
	done := false
	return through{driver, func(b contract.Backend) contract.Backend {
		return recording{b, func() {
			if !done {
				done = true
				d.write(contract.Mutation{Key: podKey("late")})
			}
		}}
	}}, func() bool { return done }
}

// recording calls record before each commit of a record that names another place.
type recording struct {
	contract.Backend
	record func()
}

func (b recording) Commit(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
	for _, m := range g.Mutations {
		r, err := parseRecord(m.Value)
		if m.Key == placementKey && err == nil && r.places[podsHere].Store == "fast" {
			b.record()
		}
	}
	return b.Backend.Commit(ctx, g)
}

// TestStoreForBesideServer: a server that serves a resource from the own store has confirmed an
// object when another one is about to record another place. The object is not lost: the record is
// taken back.
func TestStoreForBesideServer(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		x := withStores(t, d)
		late := x
		driver, wrote := x.lateWrite(d.Driver)
		late.config.Drivers = []contract.Driver{driver}
		late.refused("fast", `the objects of pods are kept in the store "default", not in "fast"`,
			"leave --store-for out")
		if !wrote() {
			t.Fatal("nothing was written")
		}
		db := x.open("")
		if n := len(list(t, pods(t, db))); n != 1 {
			t.Errorf("%d pods are served", n)
		}
		remove(t, pods(t, db), "late")
		x.close(db)
		db = x.open("fast")
		create(t, pods(t, db), "a")
		if _, p := x.recordOf(db); p.Store != "fast" || p.Also != "" {
			t.Errorf("%+v is recorded", p)
		}
	})
}

// begin does the first half of what a server does that records another place for pods.
func (d aDatabase) begin() {
	d.Helper()
	db := d.open("fast")
	defer d.close(db)
	r, _ := d.recordOf(db)
	p := placement{Prefix: "/registry", Resource: "pods", Store: "fast"}
	if _, err := db.begin(d.Context(), r, podsHere, p, db.placements.others["fast"].mvcc); err != nil {
		d.Fatal(err)
	}
}

// TestStoreForIsInterrupted: a server that ends while it records a place is followed by one that
// ends that, unless an object was written meanwhile.
func TestStoreForIsInterrupted(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		x := withStores(t, d)
		x.begin()
		x.refused("", `kept in the store "fast"`)
		x.write(contract.Mutation{Key: podKey("late")})
		x.refused("fast", `kept in the store "default"`)
		if n := x.count("default"); n != 1 {
			t.Errorf("%d pods are there", n)
		}
		x.write(contract.Mutation{Key: podKey("late"), Delete: true})
		x.begin()
		db := x.open("fast")
		if err := Agrees(db, DefaultPrefix); err != nil {
			t.Error(err)
		}
		create(t, pods(t, db), "a")
		x.refused("", "give --store-for pods=fast")
	})
}

// TestMoveAfterStoreForIsInterrupted: an object that was written while a server began to record
// another place is moved there.
func TestMoveAfterStoreForIsInterrupted(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		x := withStores(t, d)
		x.begin()
		x.write(contract.Mutation{Key: podKey("late")})
		x.move("fast", 1)
		if n := len(list(t, pods(t, x.open("fast")))); n != 1 {
			t.Errorf("%d pods are served", n)
		}
	})
}

// TestStoreForTogether: servers that are told the same begin at the same time.
func TestStoreForTogether(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		x := withStores(t, d)
		dbs := []*Store{x.open("fast"), x.open("fast"), x.open("fast")}
		for round := range 3 {
			prefix := fmt.Sprint("/registry", round)
			directory := contract.Key(prefix + "/pods/")
			var wg sync.WaitGroup
			for i, db := range dbs {
				wg.Go(func() {
					s, err := EngineFor(db, "pods", prefix, directory)
					if err != nil || s != db.placements.others["fast"].mvcc {
						t.Errorf("round %d, server %d: %v", round, i, err)
						return
					}
					key := directory + contract.Key(fmt.Sprint("ns/", i))
					if _, err := s.Commit(t.Context(), contract.Mutation{Key: key, Value: []byte("v")}); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			n, _, err := x.backend("fast").Count(t.Context(), directory, contract.PrefixEnd(directory), 0, 0)
			if err != nil || n != 3 {
				t.Errorf("round %d: %d pods are there, %v", round, n, err)
			}
		}
	})
}

// paging calls page before each read of pods.
type paging struct {
	contract.Backend
	page func()
}

func (b paging) Page(ctx context.Context, q contract.PageQuery) (*contract.Page, error) {
	if q.Start == podsHere {
		b.page()
	}
	return b.Backend.Page(ctx, q)
}

// TestStoreForIsOvertaken: while a server finds out whether it may record a place, another one
// records it, and creates an object there. It is no reason for the first one not to serve it.
func TestStoreForIsOvertaken(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		x := withStores(t, d)
		late, reads := x, 0
		late.config.Drivers = []contract.Driver{through{d.Driver, func(b contract.Backend) contract.Backend {
			return paging{b, func() {
				if reads++; reads == 2 { // of the other store
					create(t, pods(t, x.open("fast")), "a")
				}
			}}
		}}}
		if n := len(list(t, pods(t, late.open("fast")))); n != 1 || reads < 2 {
			t.Errorf("%d pods are served, after %d reads", n, reads)
		}
	})
}

// TestAdoptIsInterrupted: a store that has such objects of its own is about to become their place,
// when the move ends. No server serves them then, and the next move ends it, unless a server that
// has not heard of it has written one to the old place.
func TestAdoptIsInterrupted(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		for _, written := range []bool{false, true} {
			x := withStores(t, d)
			tenant := x.config
			tenant.Store = "fast"
			db, err := Open(t.Context(), tenant, nil)
			if err != nil {
				t.Fatal(err)
			}
			create(t, pods(t, db), "a")
			x.close(db)
			// It ends at its fence.
			ended := errors.New("the process has ended")
			recorded := false
			moving := x.config
			moving.Drivers = []contract.Driver{through{d.Driver, func(b contract.Backend) contract.Backend {
				return lockless{recording{b, func() { recorded = true }}, func() error {
					if recorded {
						return contract.Errorf(contract.Invalid, "%w", ended)
					}
					return nil
				}}
			}}}
			if _, err := MoveResource(t.Context(), moving, "", "pods", "fast"); !errors.Is(err, ended) {
				t.Fatal(err)
			}
			for _, store := range []string{"", "fast"} {
				x.refused(store, "being moved")
			}
			if written {
				x.write(contract.Mutation{Key: podKey("late")})
				_, err := MoveResource(t.Context(), x.config, "", "pods", "fast")
				x.says(err, string(podKey("late"))+" was written")
				x.write(contract.Mutation{Key: podKey("late"), Delete: true})
			}
			server, err := openOne(t.Context(), x.config.withDefaults())
			if err != nil {
				t.Fatal(err)
			}
			before := server.mvcc.Epoch()
			x.move("fast", 0)
			if _, err := server.mvcc.Head(t.Context()); err != nil || server.mvcc.Epoch() == before {
				t.Errorf("the old place was not fenced: %v", err)
			}
			x.close(server)
			db = x.open("fast")
			if n := len(list(t, pods(t, db))); n != 1 {
				t.Errorf("there are %d pods", n)
			}
			x.close(db)
			d = dbtest.Open(t, d.Kind)
		}
	})
}

// lockless refuses transactions under the lock, such as a fence.
type lockless struct {
	contract.Backend
	refuse func() error
}

func (b lockless) Locked(ctx context.Context, o contract.LockOptions,
	f func(contract.Tx) error) error {
	if err := b.refuse(); err != nil {
		return err
	}
	return b.Backend.Locked(ctx, o, f)
}
