package storage

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	apistorage "k8s.io/apiserver/pkg/storage"
	etcdmetrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"
	storagemetrics "k8s.io/apiserver/pkg/storage/metrics"
	"k8s.io/component-base/tracing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

const (
	// firstRows is how many rows are read first, unless the resource's last list has shown that
	// they are large.
	firstRows = 500
	// chunkRows is how many rows of a long list are read at a time, so that a list of any length
	// holds few stored values next to its objects.
	chunkRows = 2000
	// maxPageRows bounds the pages of a filtered list, which double until enough objects match.
	maxPageRows = 10000
	// pageBytes is how large the values of a page are to be, as far as the size of the next rows
	// can be guessed from that of the last ones. Where the guess is wrong, contract.ReadBytes
	// bounds the page.
	pageBytes = 16 << 20
	// chunkBytes is the same for the chunks of a long list: see readAhead.
	chunkBytes = 4 << 20
)

// GetList reads the objects below a key, or the one at the key, in the order of the keys. They are
// one snapshot, also over several calls with a continue token. The list says how many items remain,
// unless they are more than mvcc counts: then it leaves that out, as clients have to expect.
func (r *objectStore) GetList(ctx context.Context, key string, opts apistorage.ListOptions,
	listObj runtime.Object) error {
	if h := r.historyOf(ctx); h != nil {
		return r.history(ctx, key, opts, listObj, h)
	}
	if by := sortOf(ctx); by != nil && opts.Recursive {
		return r.sorted(ctx, key, opts, listObj, by)
	}
	return r.list(ctx, key, opts, listObj, nil)
}

// list is GetList by an index that was chosen already, or if that is nil by one that the database
// has, if there is one.
func (r *objectStore) list(ctx context.Context, key string, opts apistorage.ListOptions,
	listObj runtime.Object, by *mvcc.IndexQuery) error {
	in, err := r.listRange(key, opts)
	if err != nil {
		return err
	}
	if by == nil {
		if by, err = r.byIndex(ctx, &in, &opts.Predicate, 0); err != nil {
			return r.rangeError(ctx, in, err)
		}
	}
	in.by = by
	ctx, span := r.trace(ctx, "Rowkeeper List", key,
		attribute.Bool("recursive", opts.Recursive),
		attribute.String("resourceVersion", opts.ResourceVersion),
		attribute.String("resourceVersionMatch", string(opts.ResourceVersionMatch)),
		attribute.Int64("limit", opts.Predicate.Limit),
		attribute.String("continue", opts.Predicate.Continue))
	defer span.End(slow)
	items, err := r.newItems(listObj, opts.Predicate)
	if err != nil {
		return err
	}
	began := time.Now()
	fetched := 0
	defer func() {
		storagemetrics.RecordStorageListMetrics(r.name, metricsBackend, "", fetched,
			items.evaluated, items.len())
		etcdmetrics.RecordListLatency(r.name, false, began)
	}()

	var (
		revision contract.Revision
		last     contract.Key
		counted  int64
		passed   int64
		more     bool
	)
	for chunk, err := range r.longChunks(ctx, in) {
		if err != nil {
			return err
		}
		fetched += len(chunk.KVs)
		if revision == 0 {
			if err := r.notOlderThan(opts.ResourceVersion, chunk.Revision); in.at == 0 &&
				err != nil {
				return err
			}
			revision, counted = chunk.Revision, chunk.Count
			if chunk.More && in.limit == 0 {
				if err := r.makeRoom(ctx, items, in, len(chunk.KVs)); err != nil {
					return err
				}
			}
		}
		taken, err := items.add(ctx, chunk.KVs)
		if err != nil {
			return err
		}
		if taken > 0 {
			last = chunk.KVs[taken-1].Key
		}
		if in.limit == 0 && r.tooMany(items.len()) {
			return r.tooManyError()
		}
		passed += int64(taken)
		more = chunk.More || taken < len(chunk.KVs)
		if items.full() {
			break
		}
	}
	if err := items.errs.err(); err != nil {
		return err
	}
	items.finish()
	token, _, err := apistorage.PrepareContinueToken(string(last), string(in.start), int64(revision),
		0, more, opts)
	if err != nil {
		return err
	}
	var remaining *int64
	if more && counted > 0 {
		left := counted - passed
		remaining = &left
	}
	if err := r.objects.versioner.UpdateList(listObj, uint64(revision), token,
		remaining); err != nil {
		return err
	}
	opts.Predicate.SetShardInfoOnList(listObj)
	return nil
}

// metricsBackend is the label of list metrics; it is upstream's for what is below the watch cache.
const metricsBackend = storagemetrics.StorageBackendEtcd

// listRange is what a list reads.
type listRange struct {
	// start is the directory or the key that is listed, end where it ends.
	start, end contract.Key
	// from is where this list begins: start, or what its continue token says.
	from contract.Key
	// at is the snapshot, 0 for the newest.
	at contract.Revision
	// limit is the number of objects wanted, 0 for all.
	limit int
	// rowBytes is how large the rows of the resource were when it was listed last, 0 if it was not.
	rowBytes int
	// filtered: not every row is an object that is wanted.
	filtered   bool
	recursive  bool
	continuing bool
	// long: it is likely to be read in several chunks, the next one while one is decoded.
	long bool
	// by selects rows, nil for all.
	by *mvcc.IndexQuery
}

// page returns how many rows to read next, after rows have been read, the last time page of them
// with values of so many bytes.
func (in *listRange) page(rows, page, bytes int) int {
	most, mostBytes := firstRows, pageBytes
	if in.long {
		mostBytes = chunkBytes
	}
	if in.rowBytes > 0 {
		most = min(most, max(1, mostBytes/in.rowBytes))
	}
	if rows > 0 {
		most = max(1, page*mostBytes/max(1, bytes))
	}
	switch {
	case in.limit == 0:
		return min(chunkRows, most)
	case !in.filtered:
		return min(in.limit-rows, chunkRows, most)
	case rows == 0:
		return min(in.limit, most)
	}
	return min(2*page, maxPageRows, most) // too few matched
}

func (r *objectStore) listRange(key string, opts apistorage.ListOptions) (listRange, error) {
	k, err := r.keys.prepare(key, opts.Recursive)
	if err != nil {
		return listRange{}, err
	}
	if err := r.checkRevision(opts.ResourceVersion,
		opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact); err != nil {
		return listRange{}, err
	}
	at, from, err := apistorage.ValidateListOptions(string(k), r.objects.versioner, opts)
	if err != nil {
		return listRange{}, err
	}
	in := listRange{start: k, end: database.After(k), from: k, at: contract.Revision(at),
		recursive: opts.Recursive,
		rowBytes:  int(r.rowBytes.Load())}
	if !opts.Recursive {
		return in, nil
	}
	in.end = contract.PrefixEnd(k)
	if opts.Predicate.Continue != "" {
		in.from, in.continuing = contract.Key(from), true
	}
	in.limit = int(min(max(opts.Predicate.Limit, 0), maxLimit))
	in.filtered = !opts.Predicate.Empty()
	return in, nil
}

// maxLimit keeps a client's limit within an int of any size.
const maxLimit = 1 << 30

// checkRevision refuses revisions that would be negative as a contract.Revision. "Not older than"
// such a revision is answered as any other one that is too new.
func (r *objectStore) checkRevision(resourceVersion string, exact bool) error {
	if !exact {
		return nil
	}
	revision, err := r.objects.versioner.ParseResourceVersion(resourceVersion)
	if err == nil && int64(revision) < 0 {
		return tooLargeRevision(revision)
	}
	return nil // ValidateListOptions reports what cannot be parsed
}

// chunks reads the range page by page, all of one snapshot.
func (r *objectStore) chunks(ctx context.Context, in listRange) iter.Seq2[*mvcc.RangeResult, error] {
	verb := "get"
	if in.recursive {
		verb = "list"
	}
	return func(yield func(*mvcc.RangeResult, error) bool) {
		o := mvcc.RangeOptions{Start: in.start, End: in.end, From: in.from, At: in.at,
			Limit: in.page(0, 0, 0), Count: in.limit > 0 && !in.filtered, By: in.by}
		if !in.filtered && o.Limit == in.limit {
			o.Ahead = in.limit
		}
		rows := 0
		for {
			chunk, err := ask(ctx, r, verb, func() (*mvcc.RangeResult, error) {
				return r.mvcc.Range(ctx, o)
			})
			if errors.Is(err, contract.ErrOtherIndexes) {
				// The rest is read without the index. Perhaps the next list can use it again.
				o.By = nil
				if _, err = r.mvcc.RefreshIndexes(ctx); err == nil {
					continue
				}
			}
			if err != nil {
				yield(nil, r.rangeError(ctx, in, err))
				return
			}
			tracing.SpanFromContext(ctx).AddEvent("page",
				attribute.String("from", string(o.From)),
				attribute.Int64("revision", int64(o.At)),
				attribute.Int("limit", o.Limit),
				attribute.Int("rows", len(chunk.KVs)))
			if n := r.sizes.Load(); n != nil {
				n.observe(chunk.KVs)
			}
			if n := len(chunk.KVs); n > 0 {
				o.From = database.After(chunk.KVs[n-1].Key)
			} else if chunk.More {
				yield(nil,
					fmt.Errorf("the database says that rows follow after %q, but returned none",
						string(o.From)))
				return
			}
			rows += len(chunk.KVs)
			o.At, o.Count, o.Ahead = chunk.Revision, false, 0
			bytes := valueBytes(chunk.KVs)
			if n := len(chunk.KVs); n > 0 && in.recursive {
				r.rowBytes.Store(int64(bytes / n))
			}
			o.Limit = in.page(rows, len(chunk.KVs), bytes)
			if !yield(chunk, nil) || !chunk.More || in.limit > 0 && !in.filtered && rows >= in.limit {
				return
			}
		}
	}
}

// longChunks is chunks for a reader that decodes all that it reads. It reads ahead if the list is
// likely to have several chunks: a whole list, or a long page, by which a watch cache may be
// filled.
func (r *objectStore) longChunks(ctx context.Context,
	in listRange) iter.Seq2[*mvcc.RangeResult, error] {
	in.long = in.recursive && (in.limit == 0 || !in.filtered && in.limit > chunkRows)
	if !in.long || r.mvcc.Limits().GetsInPlace {
		return r.chunks(ctx, in)
	}
	return readAhead(r.chunks(ctx, in))
}

// readAhead reads the next chunk while one is decoded, since the database does the one and this
// process the other. So two chunks are in memory for as long as the reader of the list takes. Where
// this process is the database, it would gain nothing: rows that one processor has read are not in
// the cache of the one that decodes them.
func readAhead(chunks iter.Seq2[*mvcc.RangeResult, error]) iter.Seq2[*mvcc.RangeResult, error] {
	type result struct {
		chunk *mvcc.RangeResult
		err   error
	}
	return func(yield func(*mvcc.RangeResult, error) bool) {
		results, enough := make(chan result), make(chan struct{})
		give := func(r result) bool {
			select {
			case results <- r:
				return true
			case <-enough:
				return false
			}
		}
		var reader sync.WaitGroup
		defer reader.Wait()
		defer close(enough)
		reader.Go(func() {
			defer close(results)
			err := contract.Recovered(func() error {
				for chunk, err := range chunks {
					if !give(result{chunk, err}) {
						break
					}
				}
				return nil
			})
			if err != nil {
				give(result{nil, err})
			}
		})
		for r := range results {
			if !yield(r.chunk, r.err) {
				return
			}
		}
	}
}

// makeRoom gives the items of a whole list their room at once, after its first rows: while a long
// slice grows, it is there twice, and is copied again and again. Counting costs about a hundredth
// of reading. The count may differ from the number of rows that are read, and if it fails, the
// slice grows. If there are too many objects for a list without a limit, they are not read.
func (r *objectStore) makeRoom(ctx context.Context, items *items, in listRange, rows int) error {
	if !items.everyone {
		return nil
	}
	n, err := r.mvcc.Count(ctx, in.from, in.end)
	if err == nil && in.at == 0 && r.tooMany(int(n)) {
		return r.tooManyError()
	}
	if err == nil {
		items.slice.Grow(max(int(n), rows))
	}
	return nil
}

// tooMany tells whether a list without a limit cannot have n objects.
func (r *objectStore) tooMany(n int) bool { return r.maxUnpaged > 0 && n > r.maxUnpaged }

func (r *objectStore) tooManyError() error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the list would have more than %d %s: "+
		"ask for pages of it by a limit (kubectl: --chunk-size), select fewer, or watch with "+
		"sendInitialEvents", r.maxUnpaged, r.name.Resource))
}

func valueBytes(kvs []mvcc.KeyValue) (n int) {
	for i := range kvs {
		n += len(kvs[i].Value)
	}
	return n
}

func (r *objectStore) rangeError(ctx context.Context, in listRange, err error) error {
	var future *contract.FutureRevisionError
	switch {
	case errors.Is(err, contract.ErrCompacted):
		return compactedError(in.continuing, in.from, in.start)
	case errors.As(err, &future):
		return apistorage.NewTooLargeResourceVersionError(uint64(future.Revision),
			uint64(future.Head), 0)
	}
	return r.apiError(ctx, err)
}

// items appends to the items of a list object.
type items struct {
	r         *objectStore
	slice     reflect.Value
	pred      apistorage.SelectionPredicate
	everyone  bool
	errs      listErrors
	evaluated int
	// prepare, if not nil, gives a new item what the list's items have in common.
	prepare func(runtime.Object)
}

func (r *objectStore) newItems(list runtime.Object, pred apistorage.SelectionPredicate) (*items, error) {
	ptr, err := meta.GetItemsPtr(list)
	if err != nil {
		return nil, err
	}
	slice, err := conversion.EnforcePtr(ptr)
	if err != nil || slice.Kind() != reflect.Slice {
		return nil, fmt.Errorf("%T has no slice of items to list into: %w", list, err)
	}
	n := &items{r: r, slice: slice, pred: pred, everyone: pred.Empty(),
		errs: listErrors{resource: r.name, tolerate: r.unsafeDeletion}}
	// The objects of an unstructured list are decoded to the list's version.
	if u, ok := list.(*unstructured.UnstructuredList); ok && u.GetAPIVersion() != "" {
		version := u.GetAPIVersion()
		n.prepare = func(obj runtime.Object) {
			obj.(*unstructured.Unstructured).Object = map[string]any{"apiVersion": version}
		}
	}
	return n, nil
}

func (n *items) len() int { return n.slice.Len() }

// full tells whether the list has as many items as were asked for.
func (n *items) full() bool { return n.pred.Limit > 0 && int64(n.slice.Len()) >= n.pred.Limit }

// add appends the objects that match, until the list is full. It returns how many rows it has
// looked at.
func (n *items) add(ctx context.Context, kvs []mvcc.KeyValue) (taken int, err error) {
	if n.everyone {
		n.slice.Grow(len(kvs))
	}
	for taken < len(kvs) && !n.full() {
		window := kvs[taken:min(taken+itemWindow, len(kvs))]
		if n.pred.Limit > 0 {
			// More than these are not read, and not decoded.
			window = window[:min(int64(len(window)), n.pred.Limit-int64(n.len()))]
		}
		looked, err := n.addWindow(ctx, window)
		if taken += looked; err != nil {
			return taken, err
		}
	}
	return taken, nil
}

// itemWindow bounds how many rows are decoded before those are dropped that do not match.
const itemWindow = 256

// bytesPerDecoder is how many bytes of values are worth a goroutine of their own.
const bytesPerDecoder = 64 << 10

// addWindow appends those of a few rows that match. All processors decode them, so that whoever
// waits for a list alone has it sooner. If many lists come at once, each takes as long as with one
// processor.
func (n *items) addWindow(ctx context.Context, kvs []mvcc.KeyValue) (looked int, err error) {
	at := n.slice.Len()
	n.slice.Grow(len(kvs))
	n.slice.SetLen(at + len(kvs))
	next := at // where the next one belongs that matches
	defer func() {
		for i := next; i < at+len(kvs); i++ {
			n.slice.Index(i).SetZero()
		}
		n.slice.SetLen(next)
	}()
	results := make([]itemResult, len(kvs))
	var corrupt atomic.Int64
	inParallel(len(kvs), valueBytes(kvs)/bytesPerDecoder, func(i int) (goOn bool) {
		results[i] = n.decode(ctx, &kvs[i], n.slice.Index(at+i))
		err := results[i].err
		return err == nil || n.errs.tolerated(err) != nil && int(corrupt.Add(1)) < n.errs.room()
	})
	// Where that has stopped, this stops as well, or before.
	for i, result := range results {
		switch {
		case result.err != nil && ctx.Err() != nil: // it says nothing about the object
			return i, apistorage.NewTimeoutError(string(kvs[i].Key),
				"the request ended before the list was complete")
		case result.err != nil && n.errs.add(string(kvs[i].Key), result.err):
			return i + 1, n.errs.err()
		}
		if result.evaluated {
			n.evaluated++
		}
		if !result.matched {
			continue
		}
		if next != at+i {
			n.slice.Index(next).Set(n.slice.Index(at + i))
		}
		next++
	}
	return len(kvs), nil
}

// itemResult is what became of a row.
type itemResult struct {
	evaluated, matched bool
	err                error
}

// decode decodes the object of a row in place, into an element of the slice, and tells whether it
// belongs into the list. Several may be decoded at once.
func (n *items) decode(ctx context.Context, kv *mvcc.KeyValue, item reflect.Value) itemResult {
	if err := ctx.Err(); err != nil {
		return itemResult{err: err}
	}
	data, _, err := n.r.objects.open(ctx, kv.Key, kv.Revision, kv.Value)
	if err != nil {
		return itemResult{err: apistorage.NewInternalError(fmt.Errorf(
			"unable to transform key %q: %w", string(kv.Key), err))}
	}
	result := n.decodeOpen(ctx, data, kv.Revision, item)
	kv.Value = nil // decoding a long chunk takes a while: let go of what is done
	return result
}

// decodeOpen is decode for an object that was decrypted.
func (n *items) decodeOpen(ctx context.Context, data []byte, revision contract.Revision,
	item reflect.Value) (result itemResult) {
	item.SetZero()
	defer func() {
		if !result.matched {
			item.SetZero()
		}
	}()
	into := item.Addr().Interface().(runtime.Object)
	if n.prepare != nil {
		n.prepare(into)
	}
	obj, err := n.r.objects.decodeItem(ctx, data, into, revision)
	if err != nil {
		return itemResult{err: err}
	}
	if obj != into {
		item.Set(reflect.ValueOf(obj).Elem())
	}
	if n.everyone {
		return itemResult{evaluated: true, matched: true}
	}
	ok, err := n.pred.Matches(into)
	return itemResult{evaluated: true, matched: ok && err == nil}
}

// addOpen appends the object that was decrypted.
func (n *items) addOpen(ctx context.Context, data []byte, revision contract.Revision) error {
	at := n.slice.Len()
	n.slice.Grow(1)
	n.slice.SetLen(at + 1)
	result := n.decodeOpen(ctx, data, revision, n.slice.Index(at))
	if result.evaluated {
		n.evaluated++
	}
	if !result.matched {
		n.slice.SetLen(at)
	}
	return result.err
}

// finish makes sure that an empty list has items, since nil is encoded as null.
func (n *items) finish() {
	if n.slice.IsNil() {
		n.slice.Set(reflect.MakeSlice(n.slice.Type(), 0, 0))
	}
}
