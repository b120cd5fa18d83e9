package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	apistorage "k8s.io/apiserver/pkg/storage"
	etcdmetrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/rowkeeper/rowkeeper/storage"
)

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

func init() {
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
	etcdmetrics.Register()
}

func newPod() runtime.Object     { return &example.Pod{} }
func newPodList() runtime.Object { return &example.PodList{} }

// valuePrefix begins all values that the raw stores write.
const valuePrefix = "test!"

// env is one database and the store under test.
type env struct {
	apistorage.Interface
	store       *storage.Store
	config      storage.ResourceConfig
	transformer *switchTransformer
	calls       uint64

	mu        sync.Mutex
	revisions apistorage.Interface
	raised    int
}

// groups makes each store's metrics its own.
var groups atomic.Int64

// newEnv opens a store for pods. An option changes its configuration.
func newEnv(t *testing.T, c Config, options ...func(*env)) *env {
	t.Helper()
	e := &env{store: c.Open(t),
		transformer: newSwitchTransformer(storagetesting.NewPrefixTransformer([]byte(valuePrefix),
			false))}
	e.config = storage.ResourceConfig{
		Codec:          apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion),
		NewFunc:        newPod,
		Prefix:         "/",
		ResourcePrefix: "/pods/",
		GroupResource: schema.GroupResource{Group: fmt.Sprintf("conformance-%d", groups.Add(1)),
			Resource: "pods"},
		Transformer: e.transformer,
	}
	for _, o := range options {
		o(e)
	}
	e.Interface = e.resource(t, e.config)
	other := e.config
	other.ResourcePrefix, other.GroupResource.Resource = "/revisions/", "revisions"
	e.revisions = e.resource(t, other)
	return e
}

func (e *env) resource(t *testing.T, c storage.ResourceConfig) apistorage.Interface {
	t.Helper()
	r, destroy, err := e.store.Resource(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(destroy)
	return r
}

func withCodec(codec runtime.Codec) func(*env) {
	return func(e *env) { e.config.Codec = codec }
}

func withTransformer(transformer value.Transformer) func(*env) {
	return func(e *env) { e.config.Transformer = transformer }
}

// raiseRevision writes something else, which takes one revision.
func (e *env) raiseRevision(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.raised++
	name := strconv.Itoa(e.raised)
	out := &example.Pod{}
	if err := e.revisions.Create(ctx, "/revisions/"+name,
		&example.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}, out, 0); err != nil {
		t.Fatal(err)
	}
	revision, err := strconv.ParseInt(out.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// compact gives up the history before a revision.
func (e *env) compact(ctx context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	if err := e.store.Compact(ctx, parse(t, resourceVersion)); err != nil {
		t.Fatal(err)
	}
}

// compactAndRaise does so at the price of one revision, as upstream's compaction, which is a write
// of its own, has it.
func (e *env) compactAndRaise(ctx context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	e.compact(ctx, t, resourceVersion)
	e.raiseRevision(ctx, t)
}

func parse(t *testing.T, resourceVersion string) int64 {
	t.Helper()
	revision, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// checkStored looks at the bytes in the database: the prefix, and an object without a
// resourceVersion and a selfLink.
func (e *env) checkStored(ctx context.Context, t *testing.T, key string) {
	t.Helper()
	var seen recordingTransformer
	c := e.config
	c.Transformer = &seen
	if err := e.resource(t, c).Get(ctx, key, apistorage.GetOptions{}, &example.Pod{}); err != nil {
		t.Fatal(err)
	}
	data, found := bytes.CutPrefix(seen.stored, []byte(valuePrefix))
	if !found {
		t.Fatalf("%q does not begin with %q", seen.stored, valuePrefix)
	}
	obj, err := runtime.Decode(e.config.Codec, data)
	if err != nil {
		t.Fatal(err)
	}
	pod, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	if pod.GetResourceVersion() != "" || pod.GetSelfLink() != "" {
		t.Errorf("an object is stored with resourceVersion %q and selfLink %q",
			pod.GetResourceVersion(), pod.GetSelfLink())
	}
}

// checkCalls compares how many objects and pages a list has read from the database with what it
// should have: the pages of a list with a limit double in size until enough objects match.
func (e *env) checkCalls(t *testing.T, pageSize, objects uint64) {
	t.Helper()
	if reads := e.transformer.get().(*storagetesting.PrefixTransformer).GetReadsAndReset(); reads != objects {
		t.Errorf("%d objects were read, want %d", reads, objects)
	}
	pages := uint64(1)
	if pageSize != 0 {
		for page, sum := pageSize, uint64(1); sum < objects; pages++ {
			page = min(2*page, 10000)
			sum += page
		}
	}
	total := e.listCalls(t)
	if calls := total - e.calls; calls != pages {
		t.Errorf("%d pages were read, want %d", calls, pages)
	}
	e.calls = total
}

// listCalls returns how many pages the store has read, as its metrics count them.
func (e *env) listCalls(t *testing.T) uint64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "etcd_requests_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range metric.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["operation"] == "list" && labels["group"] == e.config.GroupResource.Group &&
				labels["resource"] == e.config.GroupResource.Resource {
				return uint64(metric.GetCounter().GetValue())
			}
		}
	}
	return 0
}

// keys lists the keys of the pods, for the estimation of sizes.
func (e *env) keys(ctx context.Context) ([]string, error) {
	list := &example.PodList{}
	if err := e.GetList(ctx, "/pods/", apistorage.ListOptions{Predicate: apistorage.Everything,
		Recursive: true}, list); err != nil {
		return nil, err
	}
	var keys []string
	for i := range list.Items {
		keys = append(keys, fmt.Sprintf("/pods/%s/%s", list.Items[i].Namespace, list.Items[i].Name))
	}
	return keys, nil
}

// UpdatePrefixTransformer replaces the transformer by what is made of a copy of it, until the
// returned function is called.
func (e *env) UpdatePrefixTransformer(modify storagetesting.PrefixTransformerModifier) func() {
	before := e.transformer.get()
	transformer := *before.(*storagetesting.PrefixTransformer)
	e.transformer.set(modify(&transformer))
	return func() { e.transformer.set(before) }
}

// errCorrupt is what upstream's tests are given as the error of a corrupt object.
var errCorrupt = errors.New("bits flipped")

// UpdateTransformer replaces the transformer until the returned function is called. Every error of
// a transformer means that the object is corrupt, unless the time was over; so the latter is what
// the tests get that want an error of another kind.
func (e *env) UpdateTransformer(modify storagetesting.TransformerModifier) func() {
	before := e.transformer.get()
	e.transformer.set(&classifyingTransformer{modify(before)})
	return func() { e.transformer.set(before) }
}

type classifyingTransformer struct{ value.Transformer }

func (c *classifyingTransformer) TransformFromStorage(ctx context.Context, data []byte,
	dataCtx value.Context) ([]byte, bool, error) {
	out, stale, err := c.Transformer.TransformFromStorage(ctx, data, dataCtx)
	if err != nil && !errors.Is(err, errCorrupt) {
		err = fmt.Errorf("%w: %w", err, context.DeadlineExceeded)
	}
	return out, stale, err
}

// switchTransformer delegates to a transformer that can be exchanged.
type switchTransformer struct{ current atomic.Value }

type boxed struct{ value.Transformer }

func newSwitchTransformer(t value.Transformer) *switchTransformer {
	s := &switchTransformer{}
	s.set(t)
	return s
}

func (s *switchTransformer) get() value.Transformer  { return s.current.Load().(boxed).Transformer }
func (s *switchTransformer) set(t value.Transformer) { s.current.Store(boxed{t}) }

func (s *switchTransformer) TransformFromStorage(ctx context.Context, data []byte,
	dataCtx value.Context) ([]byte, bool, error) {
	return s.get().TransformFromStorage(ctx, data, dataCtx)
}

func (s *switchTransformer) TransformToStorage(ctx context.Context, data []byte,
	dataCtx value.Context) ([]byte, error) {
	return s.get().TransformToStorage(ctx, data, dataCtx)
}

// recordingTransformer keeps what is stored, and takes the prefix off.
type recordingTransformer struct{ stored []byte }

func (r *recordingTransformer) TransformFromStorage(_ context.Context, data []byte,
	_ value.Context) ([]byte, bool, error) {
	r.stored = bytes.Clone(data)
	return bytes.TrimPrefix(data, []byte(valuePrefix)), false, nil
}

func (r *recordingTransformer) TransformToStorage(context.Context, []byte,
	value.Context) ([]byte, error) {
	return nil, errors.New("only for reading")
}

// failingTransformer and failingCodec fail to read while they are told to.
type failingTransformer struct {
	value.Transformer
	failing atomic.Bool
}

func (f *failingTransformer) TransformFromStorage(ctx context.Context, data []byte,
	dataCtx value.Context) ([]byte, bool, error) {
	if f.failing.Load() {
		return nil, false, errors.New("told to fail")
	}
	return f.Transformer.TransformFromStorage(ctx, data, dataCtx)
}

type failingCodec struct {
	runtime.Codec
	failing atomic.Bool
}

func (f *failingCodec) Decode(data []byte, defaults *schema.GroupVersionKind,
	into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if f.failing.Load() {
		return nil, nil, errors.New("told to fail")
	}
	return f.Codec.Decode(data, defaults, into)
}
