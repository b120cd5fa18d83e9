package storage

import (
	"context"
	"errors"
	"math"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/features"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// populate creates pods, many at a time.
func populate(t testing.TB, s apistorage.Interface, n int) {
	t.Helper()
	g, ctx := errgroup.WithContext(t.Context())
	g.SetLimit(256)
	for i := range n {
		g.Go(func() error { return s.Create(ctx, podKey(numbered(i)), pod(numbered(i)), nil, 0) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// TestListsAreSnapshots reads a list of several chunks, whole and by pages, while all of its
// objects are changed: each is as it was at the list's revision.
func TestListsAreSnapshots(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		r := pods(t, openDatabase(t, d, mvcc.Config{}))
		const objects = 2*chunkRows + 100
		populate(t, r, objects)

		g, ctx := errgroup.WithContext(t.Context())
		ctx, stop := context.WithCancel(ctx)
		for n := range 4 {
			g.Go(func() error {
				for i := n; ; i += 4 {
					if _, err := label(ctx, r, numbered(i%objects), strconv.Itoa(i)); err != nil {
						if ctx.Err() != nil {
							return nil
						}
						return err
					}
				}
			})
		}
		whole := list(t, r, apistorage.ListOptions{})
		check := func(what string, l *example.PodList) {
			t.Helper()
			if len(l.Items) != objects {
				t.Fatalf("%s: %d objects, want %d", what, len(l.Items), objects)
			}
			for i := range l.Items {
				if l.Items[i].Name != numbered(i) {
					t.Fatalf("%s: object %d is %s", what, i, l.Items[i].Name)
				}
			}
		}
		check("the whole list", whole)
		again := list(t, r, apistorage.ListOptions{ResourceVersion: whole.ResourceVersion,
			ResourceVersionMatch: metav1.ResourceVersionMatchExact})
		paged := &example.PodList{}
		opts := page(997, "")
		opts.ResourceVersion, opts.ResourceVersionMatch = whole.ResourceVersion,
			metav1.ResourceVersionMatchExact
		for {
			p := list(t, r, opts)
			if p.ResourceVersion != whole.ResourceVersion {
				t.Fatalf("a page of revision %s in a list of revision %s", p.ResourceVersion,
					whole.ResourceVersion)
			}
			paged.Items = append(paged.Items, p.Items...)
			left := int64(objects - len(paged.Items))
			if p.Continue == "" {
				break
			}
			if p.RemainingItemCount == nil || *p.RemainingItemCount != left {
				t.Fatalf("%d items are said to remain, want %d", p.RemainingItemCount, left)
			}
			opts = page(997, p.Continue)
		}
		stop()
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		for what, l := range map[string]*example.PodList{"the list again": again, "the pages": paged} {
			check(what, l)
			for i := range l.Items {
				if got, want := l.Items[i].ResourceVersion, whole.Items[i].ResourceVersion; got != want {
					t.Fatalf("%s: %s is at revision %s, and was at %s", what, l.Items[i].Name, got,
						want)
				}
			}
		}
	})
}

// hookedTransformer stores values as they are, and calls read before each one that it is given
// back.
type hookedTransformer struct{ read func() }

func (h *hookedTransformer) TransformToStorage(_ context.Context, data []byte,
	_ value.Context) ([]byte, error) {
	return data, nil
}

func (h *hookedTransformer) TransformFromStorage(_ context.Context, data []byte,
	_ value.Context) ([]byte, bool, error) {
	h.read()
	return data, false, nil
}

// TestChunksAreOfOneSnapshot: an object of a later chunk that is changed while the first chunk is
// decoded is as it was at the list's revision.
func TestChunksAreOfOneSnapshot(t *testing.T) {
	store := memory(t)
	c, hook := podConfig(), &hookedTransformer{read: func() {}}
	c.Transformer = hook
	r, other := open(t, store, c), pods(t, store)
	populate(t, r, chunkRows+1)
	last := numbered(chunkRows)
	hook.read = sync.OnceFunc(func() {
		if _, err := label(t.Context(), other, last, "changed"); err != nil {
			t.Error(err)
		}
	})
	l := list(t, r, apistorage.ListOptions{})
	if n := len(l.Items); n != chunkRows+1 || l.Items[n-1].Name != last ||
		len(l.Items[n-1].Labels) > 0 {
		t.Errorf("a list of %d objects at revision %s ends with %+v", n, l.ResourceVersion,
			l.Items[n-1].ObjectMeta)
	}
}

// TestDirectoriesBesideEachOther: a resource has no objects of those whose names begin as its own.
func TestDirectoriesBesideEachOther(t *testing.T) {
	store := memory(t)
	c := podConfig()
	c.ResourcePrefix, c.GroupResource.Resource = "/podsets", "podsets"
	r, other := pods(t, store), open(t, store, c)
	create(t, r, pod("a"))
	if err := other.Create(t.Context(), "/podsets/ns/b", pod("b"), &example.Pod{}, 0); err != nil {
		t.Fatal(err)
	}
	if l := list(t, r, apistorage.ListOptions{}); len(l.Items) != 1 || l.Items[0].Name != "a" {
		t.Errorf("the pods are %+v", l.Items)
	}
	if n, err := r.Stats(t.Context()); err != nil || n.ObjectCount != 1 {
		t.Errorf("of pods there are %+v, %v", n, err)
	}
}

// TestContinueAfterCompaction compacts while a page is read chunk by chunk. The page fails, and the
// token in its error leads on from where the page began: what its first chunk has read was given to
// nobody.
func TestContinueAfterCompaction(t *testing.T) {
	store := memory(t)
	var read func()
	c := podConfig()
	c.Transformer = &hookedTransformer{func() {
		if read != nil {
			read()
		}
	}}
	s := open(t, store, c)
	const objects, first = 1500, 200
	populate(t, s, objects)
	seen := map[string]bool{}
	collect := func(l *example.PodList) string {
		for i := range l.Items {
			seen[l.Items[i].Name] = true
		}
		return l.Continue
	}
	token := collect(list(t, s, page(first, "")))
	chunk := 0
	read = func() {
		if chunk++; chunk > 1 {
			return
		}
		r, err := database.Engine(store.db).Commit(t.Context(), contract.Mutation{Key: "/other/key", Value: []byte("x")})
		if err == nil {
			err = database.Engine(store.db).Compact(t.Context(), r)
		}
		if err != nil {
			t.Error(err)
		}
	}
	l, err := tryList(t.Context(), s, page(1000, token))
	read = nil
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsResourceExpired(err) ||
		status.Status().Continue == "" {
		t.Fatalf("a page of which a part was compacted: %d items, %v", len(l.Items), err)
	}
	for token = status.Status().Continue; token != ""; {
		token = collect(list(t, s, page(1000, token)))
	}
	for i := range objects {
		if !seen[numbered(i)] {
			t.Fatalf("%d of %d objects are on a page; the first that is on none is %s", len(seen),
				objects, numbered(i))
		}
	}
}

// TestRoomOfLists: the items of a whole list that is read in several chunks are given their room at
// once.
func TestRoomOfLists(t *testing.T) {
	r := pods(t, memory(t))
	const objects = 2*chunkRows + 100
	populate(t, r, objects)
	whole := list(t, r, apistorage.ListOptions{})
	if n, room := len(whole.Items), cap(whole.Items); n != objects || room > objects*105/100 {
		t.Errorf("a list of %d has %d items and room for %d", objects, n, room)
	}
}

// TestListsInParallel: what is decoded by several processors is what one would have decoded: all
// objects in their order, those that are selected, and the first error.
func TestListsInParallel(t *testing.T) {
	r := pods(t, memory(t))
	const objects = 500
	for i := range objects {
		p := pod(numbered(i))
		p.Labels = map[string]string{"third": strconv.FormatBool(i%3 == 0)}
		p.Annotations = map[string]string{"bulk": strings.Repeat("x", 4*bytesPerDecoder/objects)}
		if err := r.Create(t.Context(), podKey(p.Name), p, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	thirds := apistorage.SelectionPredicate{GetAttrs: apistorage.DefaultNamespaceScopedAttr,
		Label: labels.SelectorFromSet(labels.Set{"third": "true"}), Field: fields.Everything()}
	for what, test := range map[string]struct {
		opts apistorage.ListOptions
		step int
	}{
		"all": {apistorage.ListOptions{}, 1}, "a page of all": {page(objects, ""), 1},
		"a third": {apistorage.ListOptions{Predicate: thirds}, 3},
	} {
		l := list(t, r, test.opts)
		if n := (objects + test.step - 1) / test.step; len(l.Items) != n {
			t.Fatalf("%s: %d items, want %d", what, len(l.Items), n)
		}
		for i := range l.Items {
			if got, want := l.Items[i].Name, numbered(i*test.step); got != want {
				t.Fatalf("%s: item %d is %s, want %s", what, i, got, want)
			}
		}
		for i, rest := range l.Items[len(l.Items):cap(l.Items)] {
			if rest.Name != "" {
				t.Fatalf("%s: behind the list, item %d is %s", what, i, rest.Name)
			}
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tryList(ended, r, apistorage.ListOptions{}); err == nil {
		t.Error("a request that has ended was answered")
	}
}

// TestFailedListsStop: what follows an object that ends a list, or the initial events of a watch,
// is not decrypted: each may take as long as a call to a key service that is away.
func TestFailedListsStop(t *testing.T) {
	store := memory(t)
	const objects = 500
	populate(t, pods(t, store), objects)
	for name, tolerated := range map[string]int{"strict": 0, "tolerant": maxCorrupt - 1} {
		t.Run(name, func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
				features.AllowUnsafeMalformedObjectDeletion, tolerated > 0)
			c, counting := podConfig(), &countingTransformer{}
			c.Transformer = counting
			r := open(t, store, c)
			calls := func(what string, tolerated int) {
				t.Helper()
				most := int64(tolerated + goruntime.GOMAXPROCS(0))
				if n := counting.calls.Swap(0); n == 0 || n > most {
					t.Errorf("%s: %d objects were decrypted, want at most %d", what, n, most)
				}
			}
			if _, err := tryList(t.Context(), r, apistorage.ListOptions{}); err == nil {
				t.Error("what cannot be decrypted was listed")
			}
			calls("list", tolerated)
			w := startWatch(t, r, apistorage.ListOptions{ResourceVersion: "0"})
			if e := next(t, w); e.Type != watch.Error {
				t.Errorf("got %s", brief(t, e))
			}
			ended(t, w)
			calls("watch", 0)
		})
	}
}

// TestEndedListsAreNotCorrupt: an object that could not be decrypted since the request had ended is
// not said to be corrupt, whatever the error is.
func TestEndedListsAreNotCorrupt(t *testing.T) {
	store := memory(t)
	populate(t, pods(t, store), 10)
	c, counting := podConfig(), &countingTransformer{}
	c.Transformer = counting
	r := open(t, store, c)
	ctx, cancel := context.WithCancel(t.Context())
	counting.end = cancel
	var status *apistorage.StorageError
	if _, err := tryList(ctx, r, apistorage.ListOptions{}); !errors.As(err, &status) ||
		status.Code != apistorage.ErrCodeTimeout {
		t.Errorf("got %v", err)
	}
}

// countingTransformer decrypts nothing. It ends the request with the third object, if it has an
// end.
type countingTransformer struct {
	brokenTransformer
	calls atomic.Int64
	end   func()
}

func (c *countingTransformer) TransformFromStorage(ctx context.Context, data []byte,
	v value.Context) ([]byte, bool, error) {
	if c.calls.Add(1) == 3 && c.end != nil {
		c.end()
	}
	return c.brokenTransformer.TransformFromStorage(ctx, data, v)
}

// TestRemainingItems: what is not counted is not said.
func TestRemainingItems(t *testing.T) {
	r := pods(t, memory(t))
	populate(t, r, mvcc.CountLimit+5)
	if l := list(t, r, page(2, "")); l.Continue == "" || l.RemainingItemCount != nil {
		t.Errorf("of more than are counted, %v remain", l.RemainingItemCount)
	}
	l := list(t, r, page(6, ""))
	l = list(t, r, page(2, l.Continue))
	if l.Continue == "" || l.RemainingItemCount == nil || *l.RemainingItemCount != mvcc.CountLimit-3 {
		t.Errorf("%v remain, want %d", l.RemainingItemCount, mvcc.CountLimit-3)
	}
	filtered := page(2, "")
	filtered.Predicate.Label, filtered.Predicate.Field = labels.Everything(),
		fields.OneTermNotEqualSelector("metadata.name", "x")
	filtered.Predicate.GetAttrs = apistorage.DefaultNamespaceScopedAttr
	if l := list(t, r, filtered); l.Continue == "" || l.RemainingItemCount != nil ||
		len(l.Items) != 2 {
		t.Errorf("of a filtered list, %v remain", l.RemainingItemCount)
	}
}

func TestListOfImpossibleRevisions(t *testing.T) {
	r := pods(t, memory(t))
	huge := strconv.FormatUint(math.MaxInt64+1, 10)
	_, err := tryList(t.Context(), r, apistorage.ListOptions{ResourceVersion: huge,
		ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if !apierrors.IsBadRequest(err) {
		t.Errorf("exactly %s: %v", huge, err)
	}
	_, err = tryList(t.Context(), r, apistorage.ListOptions{ResourceVersion: huge,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if !apistorage.IsTooLargeResourceVersion(err) {
		t.Errorf("not older than %s: %v", huge, err)
	}
	legacy := page(1, "")
	legacy.ResourceVersion = huge
	if _, err = tryList(t.Context(), r, legacy); err == nil {
		t.Error("a page at a revision that cannot exist")
	}
}

// TestUnstructuredItems: the objects of an unstructured list have the version that the list asks
// for.
func TestUnstructuredItems(t *testing.T) {
	store := memory(t)
	c := podConfig()
	c.Codec = unstructured.UnstructuredJSONScheme
	c.NewFunc = func() runtime.Object { return &unstructured.Unstructured{} }
	r := open(t, store, c)
	for _, name := range []string{"a", "b"} {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1",
			"kind":     "Thing",
			"metadata": map[string]any{"name": name, "namespace": "ns"}}}
		if err := r.Create(t.Context(), podKey(name), u, &unstructured.Unstructured{}, 0); err != nil {
			t.Fatal(err)
		}
	}
	out := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "example.com/v1",
		"kind": "ThingList"}}
	if err := r.GetList(t.Context(), "/pods", everything(""), out); err != nil {
		t.Fatal(err)
	}
	if len(out.Items) != 2 || out.Items[0].GetName() != "a" ||
		out.Items[1].GetAPIVersion() != "example.com/v1" ||
		out.Items[1].GetResourceVersion() != "3" {
		t.Errorf("got %v", out.Items)
	}
}

// deadTransformer is one whose key server does not answer in time.
type deadTransformer struct{ brokenTransformer }

func (deadTransformer) TransformFromStorage(context.Context, []byte,
	value.Context) ([]byte, bool, error) {
	return nil, false, errors.Join(errors.New("the key server does not answer"),
		context.DeadlineExceeded)
}

// TestTimeIsNotCorruption: an object is not corrupt because its key could not be had in time;
// deleting it unread must stay impossible.
func TestTimeIsNotCorruption(t *testing.T) {
	store := memory(t)
	create(t, pods(t, store), pod("a"))
	for name, test := range map[string]struct {
		transformer value.Transformer
		corrupt     bool
	}{
		"broken": {brokenTransformer{}, true},
		"dead":   {deadTransformer{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := podConfig()
			c.Transformer = test.transformer
			r := open(t, store, c)
			if err := r.Get(t.Context(), podKey("a"), apistorage.GetOptions{},
				&example.Pod{}); apistorage.IsCorruptObject(err) != test.corrupt || err == nil {
				t.Errorf("get: %v", err)
			}
			validated := false
			err := r.Delete(t.Context(), podKey("a"), &example.Pod{}, nil,
				func(context.Context, runtime.Object) error {
					validated = true
					return errors.New("not now")
				}, nil, apistorage.DeleteOptions{ExpectTransformOrDecodeError: true})
			if validated != test.corrupt || err == nil {
				t.Errorf("validated %v, %v", validated, err)
			}
		})
	}
}

// Pages are bounded in rows, and in bytes as far as the next rows are like the last ones.
func TestPageSizes(t *testing.T) {
	for _, tc := range []struct {
		name              string
		limit             int
		filtered, long    bool
		rows, page, bytes int
		rowBytes          int
		want              int
	}{
		{name: "the first page of objects that were large last time", long: true, rowBytes: 1 << 20,
			want: 4},
		{name: "that was asked for", rowBytes: 1 << 20, limit: 300, want: 16},
		{name: "of objects that were small", rowBytes: 100, want: firstRows},
		{name: "of objects that were greater than a page", rowBytes: 2 * pageBytes, want: 1},
		{name: "the first page of a whole list", want: firstRows},
		{name: "then of small objects", rows: 500, page: 500, bytes: 500 << 10, want: chunkRows},
		{name: "of no values", rows: 500, page: 500, want: chunkRows},
		{name: "of great objects", long: true, rows: 500, page: 500, bytes: 500 << 20, want: 4},
		{name: "greater than a page", rows: 2, page: 2, bytes: 4 * pageBytes, want: 1},
		{name: "a page that was asked for", limit: 300, want: 300},
		{name: "a long one", limit: 5000, want: firstRows},
		{name: "its rest", limit: 5000, rows: 4500, page: 2000, bytes: 2 << 20, want: 500},
		{name: "its rest, of great objects", limit: 5000, rows: 4500, page: 2000, bytes: 2000 << 20,
			want: 16},
		{name: "the same, read ahead", long: true, limit: 5000, rows: 4500, page: 2000,
			bytes: 2000 << 20, want: 4},
		{name: "the first page of a filtered list", limit: 10, filtered: true, want: 10},
		{name: "too few matched", limit: 10, filtered: true, rows: 10, page: 10, bytes: 10 << 10,
			want: 20},
		{name: "far too few", limit: 10, filtered: true, rows: 30_000, page: 8000, bytes: 8000,
			want: maxPageRows},
		{name: "far too few of great objects", limit: 10, filtered: true, rows: 30_000, page: 8000,
			bytes: 8000 << 20, want: 16},
	} {
		r := listRange{long: tc.long, limit: tc.limit, filtered: tc.filtered,
			rowBytes: tc.rowBytes}
		if got := r.page(tc.rows, tc.page, tc.bytes); got != tc.want {
			t.Errorf("%s: %d rows, want %d", tc.name, got, tc.want)
		}
	}
}
