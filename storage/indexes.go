package storage

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// Lists by an index. People declare the indexes of a resource in the database: labels and fields,
// by name. Writes of this process bring what their objects say to the declared names, and lists
// whose selector demands a value of one read the objects that have it. index.go of the contract
// says why that misses none. Each object is matched again after it was decoded, so all that an
// index decides is what is not read.
//
// # What makes a value
//
// What an index says of an object has to be what a selector says of it, whichever version the list
// asks for. A Go type has one form in which all requests are served. The objects of definitions
// one for each version, which are the same but for the version itself, unless a webhook converts
// them: then there is no index. A codec that implements [unindexed] says so.
//
// Labels are stored. The fields of a Go type are what a program makes of what is stored: another
// version of the program may convert it, or set defaults, otherwise. So an index of a field belongs
// to a program. When another program starts, it claims the index, which is built anew then. Until
// then, and in servers of the old program that go on, its lists are read without the index, and
// what such servers write is unknown to it. A definition may change its schema, and by that its
// defaults, at any moment. So there are no indexes of its fields.

// How the names of indexes begin, and the one that is about the time of creation.
const (
	labelIndex   = "label:"
	fieldIndex   = "field:"
	createdIndex = "created"
)

// unindexed is a codec whose objects cannot have an index.
type unindexed interface {
	// Unindexed tells why, "" if they can.
	Unindexed() string
	// UnindexedFields tells why, "" if they can, for an index of a field.
	UnindexedFields() string
}

// whyUnindexed tells why the resource cannot have an index, "" if it can.
func whyUnindexed(c ResourceConfig) string {
	if u, ok := c.Codec.(unindexed); ok && u.Unindexed() != "" {
		return u.Unindexed()
	}
	if c.Transformer != identity.NewEncryptCheckTransformer() {
		return "its objects are encrypted, and an index would show values of them"
	}
	return ""
}

// whyUnindexedFields is whyUnindexed for an index of a field.
func whyUnindexedFields(c ResourceConfig) string {
	if u, ok := c.Codec.(unindexed); ok && u.UnindexedFields() != "" {
		return u.UnindexedFields()
	}
	return whyUnindexed(c)
}

// why tells why the resource cannot have an index, "" if it can.
func (r *objectStore) why(d *contract.Index) string {
	if strings.HasPrefix(d.Name, fieldIndex) {
		return r.unindexedFields
	}
	return r.unindexed
}

// ours tells whether this program finds what an index has of an object.
func (r *objectStore) ours(d *contract.Index) bool {
	return r.why(d) == "" && (!strings.HasPrefix(d.Name, fieldIndex) || d.By == r.program())
}

// program names this program by what it is made of.
var program = sync.OnceValue(func() string {
	path, err := os.Executable()
	if err != nil {
		return rand.Text()
	}
	file, err := os.Open(path)
	if err != nil {
		return rand.Text()
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return rand.Text()
	}
	return hex.EncodeToString(hash.Sum(nil)[:16])
})

// entries are what the indexes have of an object, under the declarations that it returns. These are
// nil if the object says nothing to them.
func (r *objectStore) entries(obj runtime.Object) (*contract.Indexes, []contract.Entry) {
	x := r.mvcc.Indexes()
	if len(x.All) == 0 {
		return nil, nil
	}
	in := x.In(r.keys.all())
	if len(in) == 0 {
		return nil, nil
	}
	found, ok := r.entriesUnder(in, obj)
	if !ok {
		return nil, nil
	}
	return x, found
}

func (r *objectStore) entriesUnder(in []*contract.Index, obj runtime.Object) (found []contract.Entry,
	ok bool) {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return nil, false
	}
	labels := accessor.GetLabels()
	var set fields.Set
	for _, d := range in {
		if r.why(d) != "" {
			found = append(found, contract.UnknownEntry(d.ID))
			continue
		}
		if d.Name == ownersIndex {
			found = append(found, ownerEntries(d.ID, accessor.GetOwnerReferences())...)
			continue
		}
		if d.Name == createdIndex {
			// Times of one zone sort as texts do.
			created := accessor.GetCreationTimestamp().UTC().Format(time.RFC3339)
			found = append(found, contract.ValueEntry(d.ID, created))
			continue
		}
		if key, ok := strings.CutPrefix(d.Name, labelIndex); ok {
			if value, ok := labels[key]; ok {
				found = append(found, contract.ExistsEntry(d.ID), contract.ValueEntry(d.ID, value))
			}
			continue
		}
		if set == nil {
			set = r.fieldsOf(obj)
		}
		if value, ok := set[strings.TrimPrefix(d.Name, fieldIndex)]; ok && r.ours(d) {
			found = append(found, contract.ValueEntry(d.ID, value))
		} else {
			found = append(found, contract.UnknownEntry(d.ID))
		}
	}
	return found, true
}

// fieldsOf are the fields by which the object can be selected, none if that is not known.
func (r *objectStore) fieldsOf(obj runtime.Object) fields.Set {
	if r.attributes != nil {
		if _, set, err := r.attributes(obj); err == nil && set != nil {
			return set
		}
	}
	return fields.Set{}
}

// followIndexes declares the indexes that the program wants, builds those that are declared, and
// ends those that the resource cannot have, until it is released.
func (r *objectStore) followIndexes() {
	for r.lifetime.Err() == nil {
		changed := r.mvcc.IndexesChanged()
		for pause := buildAgain; ; {
			began := time.Now()
			more, err := r.buildIndexes()
			if err == nil && !more {
				break
			}
			if err == nil {
				pause = buildAgain
				contract.Wait(r.lifetime, time.Since(began)) // writers have the other half of the time
				continue
			}
			if r.lifetime.Err() != nil || errors.Is(err, contract.ErrClosed) ||
				errors.Is(err, contract.ErrDropped) {
				return
			}
			r.store.log.Warn("the indexes of a resource cannot be built at the moment; its lists go on "+
				"without them", "resource", resourceName(r.name), "err", err)
			contract.Wait(r.lifetime, pause)
			pause = min(2*pause, slowestBuild)
		}
		select {
		case <-changed:
		case <-r.lifetime.Done():
		}
	}
}

// How long an index waits after its building has failed, at first and at last.
const (
	buildAgain   = time.Second
	slowestBuild = time.Minute
)

// declareIndexes declares those of the indexes that the database lacks and the resource can have.
func (r *objectStore) declareIndexes(indexes []string) error {
	directory := contract.Directory{Path: r.keys.all(), Group: r.name.Group, Resource: r.name.Resource}
	wanted := slices.DeleteFunc(slices.Clone(indexes), func(name string) bool {
		why := r.why(&contract.Index{Name: name})
		if why != "" {
			r.store.log.Warn("an index is not declared, since the resource cannot have it", "resource",
				resourceName(r.name), "index", name, "reason", why)
		}
		return why != ""
	})
	lacks := func(x *contract.Indexes) (names []string) {
		in := x.In(directory.Path)
		for _, name := range wanted {
			if !slices.ContainsFunc(in, func(d *contract.Index) bool { return d.Name == name }) {
				names = append(names, name)
			}
		}
		return names
	}
	x, err := r.mvcc.RefreshIndexes(r.lifetime)
	if err != nil || len(lacks(x)) == 0 {
		return err
	}
	var refused error
	_, err = r.mvcc.ChangeIndexes(r.lifetime, func(x *contract.Indexes) (changed bool, _ error) {
		for _, name := range lacks(x) {
			if refused = x.Add(directory, name); refused != nil {
				break
			}
			changed = true
		}
		return changed, nil
	})
	if err == nil && refused != nil {
		r.store.log.Error("an index of the program is not declared", "resource", resourceName(r.name),
			"reason", refused)
	}
	return err
}

// buildIndexes does a step, and tells whether there is more to do. An index that another program
// has claimed meanwhile is that one's to build, and so are those beside it.
func (r *objectStore) buildIndexes() (more bool, err error) {
	if len(r.declares) > 0 {
		if err := r.declareIndexes(r.declares); err != nil {
			return false, err
		}
		r.declares = nil
	}
	directory := r.keys.all()
	for _, d := range r.mvcc.Indexes().In(directory) {
		switch {
		case r.why(d) != "":
			_, err := r.mvcc.ChangeIndexes(r.lifetime, func(x *contract.Indexes) (bool, error) {
				return x.Drop(directory, d.Name), nil
			})
			if err == nil {
				r.store.log.Error("an index was dropped, since the resource cannot have it", "resource",
					resourceName(r.name), "index", d.Name, "reason", r.why(d))
			}
			return true, err
		case r.ours(d):
		case r.claimed[d.ID]:
			return false, nil
		default:
			_, err := r.mvcc.ChangeIndexes(r.lifetime, func(x *contract.Indexes) (bool, error) {
				return x.Claim(directory, d.Name, r.program()), nil
			})
			if err == nil {
				r.claimed[d.ID] = true
			}
			return true, err
		}
	}
	return r.mvcc.BuildIndexes(r.lifetime, directory, directory[:len(directory)-1]+"0", r.ours,
		func(x *contract.Indexes, kv *mvcc.KeyValue) ([]contract.Entry, bool) {
			obj, err := r.decodeStored(r.lifetime, kv)
			if err != nil {
				return nil, false
			}
			return r.entriesUnder(x.In(directory), obj)
		})
}

// decodeStored decodes what is stored into a new object.
func (r *objectStore) decodeStored(ctx context.Context, kv *mvcc.KeyValue) (runtime.Object, error) {
	data, _, err := r.objects.open(ctx, kv.Key, kv.Revision, kv.Value)
	if err != nil {
		return nil, err
	}
	return r.objects.decode(data, r.newFunc(), kv.Revision)
}

// mostValues is how many values of a selector are looked for in an index.
const mostValues = 8

// candidates are the indexes by which a list can be read, each with the entries that it asks for.
func (r *objectStore) candidates(pred *apistorage.SelectionPredicate) (found []mvcc.IndexQuery) {
	x := r.mvcc.Indexes()
	if len(x.All) == 0 {
		return nil
	}
	for _, d := range x.In(r.keys.all()) {
		if d.State != contract.IndexReady || !r.ours(d) {
			continue
		}
		entries := demanded(d, pred)
		if len(entries) > 0 && len(entries) <= mostValues {
			entries = append(entries, contract.UnknownEntry(d.ID))
			slices.Sort(entries)
			found = append(found, mvcc.IndexQuery{Generation: x.Generation,
				Entries: slices.Compact(entries), Since: d.Since})
		}
	}
	return found
}

// demanded are entries such that every object that the predicate takes has one of them, none if the
// predicate demands nothing of the index.
func demanded(d *contract.Index, pred *apistorage.SelectionPredicate) (entries []contract.Entry) {
	if key, ok := strings.CutPrefix(d.Name, labelIndex); ok && pred.Label != nil {
		requirements, selectable := pred.Label.Requirements()
		for _, q := range requirements {
			if !selectable || q.Key() != key {
				continue
			}
			switch q.Operator() {
			case selection.Equals, selection.DoubleEquals, selection.In:
				for value := range q.Values() {
					entries = append(entries, contract.ValueEntry(d.ID, value))
				}
				return entries
			case selection.Exists, selection.GreaterThan, selection.LessThan:
				entries = []contract.Entry{contract.ExistsEntry(d.ID)} // unless another one says more
			}
		}
		return entries
	}
	name, ok := strings.CutPrefix(d.Name, fieldIndex)
	if !ok || pred.Field == nil {
		return nil
	}
	for _, q := range pred.Field.Requirements() {
		if q.Field == name && (q.Operator == selection.Equals || q.Operator == selection.DoubleEquals) {
			return []contract.Entry{contract.ValueEntry(d.ID, q.Value)}
		}
	}
	return nil
}

// byIndex chooses the index by which a list is read, nil for none. Where there are several, it
// counts what each would read, up to a bound, and takes the one that reads least. It counts one as
// well if fewest is not 0, and takes none that would read so many or more.
func (r *objectStore) byIndex(ctx context.Context, in *listRange, pred *apistorage.SelectionPredicate,
	fewest int64) (*mvcc.IndexQuery, error) {
	if !in.recursive || !in.filtered {
		return nil, nil
	}
	found := r.candidates(pred)
	if len(found) == 0 {
		return nil, nil
	}
	best, least := &found[0], int64(0)
	if len(found) > 1 || fewest > 0 {
		best, least = nil, max(fewest, countedEntries)
		for i := range found {
			n, err := r.mvcc.CountEntries(ctx, found[i].Entries, in.from, in.end, least)
			if err != nil {
				return nil, err
			}
			if best == nil && fewest == 0 || n < least {
				best, least = &found[i], n
			}
		}
	}
	if best == nil || fewest > 0 && least >= fewest {
		return nil, nil
	}
	return best, nil
}

// countedEntries is where counting ends if several indexes are compared, and beyondCache how many
// objects an index has to have at most so that a list is read by it rather than from a watch cache.
// A row that is read and decoded costs as much as some hundred objects that the cache looks at.
const (
	countedEntries = 1_000
	beyondCache    = 1_000
	// countedWithin bounds what a list waits for the database where the cache can answer it.
	countedWithin = 500 * time.Millisecond
)

// listByIndex answers a list in the place of the watch cache, if that would look at many more
// objects than an index. It tells whether it has. The newest state satisfies every resourceVersion
// that is not exact.
func (s *cachedStore) listByIndex(ctx context.Context, key string, opts apistorage.ListOptions,
	list runtime.Object) (bool, error) {
	r := s.log
	if !opts.Recursive || opts.Predicate.Continue != "" || opts.Predicate.Empty() ||
		len(r.mvcc.Indexes().All) == 0 {
		return false, nil
	}
	switch {
	case opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact:
		return false, nil
	case opts.ResourceVersion != "" && opts.ResourceVersion != "0" &&
		opts.ResourceVersionMatch != metav1.ResourceVersionMatchNotOlderThan:
		return false, nil
	}
	in, err := r.listRange(key, opts)
	if err != nil {
		return false, nil //nolint:nilerr // the cache says what is wrong
	}
	counting, cancel := context.WithTimeout(ctx, countedWithin)
	defer cancel()
	by, err := r.byIndex(counting, &in, &opts.Predicate, beyondCache)
	if err != nil || by == nil {
		return false, nil //nolint:nilerr // the cache can answer without the database
	}
	return true, r.list(ctx, key, opts, list, by)
}

// Index is an index of a resource. Its name is label: and the key of a label, field: and a field by
// which the objects can be selected, or created, for the time of their creation. One that is called
// owners is for the garbage collector; see [Store.IndexOwners].
type Index struct {
	Resource schema.GroupResource
	Name     string
	// Ready tells that lists use it. It is built by the servers that serve the resource. Dropped
	// tells that what there is of it is being removed.
	Ready, Dropped bool
	// Built is the key of the database up to which it is built, "" if that has not begun.
	Built string
}

// Indexes lists the indexes of the store that Config.Store names.
func Indexes(ctx context.Context, c Config) (all []Index, err error) {
	declared, err := database.Indexes(ctx, c.Database())
	for _, d := range declared {
		all = append(all, Index{Resource: schema.GroupResource{Group: d.Group, Resource: d.Resource},
			Name: d.Name, Ready: d.State == contract.IndexReady,
			Dropped: d.State == contract.IndexDropping, Built: string(d.Built)})
	}
	return all, err
}

// AddIndex declares an index of a resource in the store that Config.Store names. The prefix is that
// of the servers. They learn of it within ten seconds, and build it while they go on. A resource
// has eight indexes at most. The objects of a resource that has an index must not be encrypted, and
// no webhook must convert them, and an index of a field is for Go types: a server that finds
// another one drops it, and logs that.
func AddIndex(ctx context.Context, c Config, prefix string, resource schema.GroupResource,
	name string) error {
	if err := checkIndexName(name); err != nil {
		return err
	}
	return database.AddIndex(ctx, c.Database(), orDefault(prefix), resourceName(resource), name)
}

// DropIndex removes an index.
func DropIndex(ctx context.Context, c Config, prefix string, resource schema.GroupResource,
	name string) error {
	return database.DropIndex(ctx, c.Database(), orDefault(prefix), resourceName(resource), name)
}

// RebuildIndex has an index built anew.
func RebuildIndex(ctx context.Context, c Config, prefix string, resource schema.GroupResource,
	name string) error {
	return database.RebuildIndex(ctx, c.Database(), orDefault(prefix), resourceName(resource), name)
}

func orDefault(prefix string) string { return cmp.Or(prefix, DefaultPrefix) }

// checkIndexNames refuses names of a resource's indexes that it cannot have all.
func checkIndexNames(names []string) error {
	for i, name := range names {
		if err := checkIndexName(name); err != nil {
			return err
		}
		if slices.Contains(names[:i], name) {
			return fmt.Errorf("the index %s is named twice", name)
		}
	}
	if n := len(names); n > contract.MaxIndexes {
		return fmt.Errorf("%d indexes are named, and a resource may have %d: leave some out", n,
			contract.MaxIndexes)
	}
	return nil
}

// checkIndexName refuses a name that no index can have.
func checkIndexName(name string) error {
	key, label := strings.CutPrefix(name, labelIndex)
	field, isField := strings.CutPrefix(name, fieldIndex)
	if label && len(validation.IsQualifiedName(key)) == 0 || isField && field != "" ||
		name == createdIndex {
		return nil
	}
	return fmt.Errorf("an index is named after a label, such as label:app, or after a field by which "+
		"objects can be selected, such as field:spec.color, or it is created, and not %q", name)
}
