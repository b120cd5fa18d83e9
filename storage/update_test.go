package storage

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// TestHotKey lets many writers count in one object, some with outdated suggestions: no count is
// lost, each takes one revision.
func TestHotKey(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		r := pods(t, openDatabase(t, d, mvcc.Config{}))
		first := create(t, r, pod("hot"))
		const writers, counts = 8, 25
		var wg sync.WaitGroup
		for n := range writers {
			wg.Go(func() {
				for range counts {
					var suggestion runtime.Object
					if n%2 == 0 {
						suggestion = first.DeepCopy()
					}
					if err := r.GuaranteedUpdate(t.Context(), podKey("hot"), &example.Pod{}, false,
						nil, changing(counting), suggestion); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		out := &example.Pod{}
		if err := r.Get(t.Context(), podKey("hot"), apistorage.GetOptions{}, out); err != nil {
			t.Fatal(err)
		}
		if out.Generation != writers*counts || revisionOf(t, out) != revisionOf(t, first)+writers*counts {
			t.Errorf("counted to %d, at revision %s after %s", out.Generation, out.ResourceVersion,
				first.ResourceVersion)
		}
	})
}

// outdatedTransformer stores values as they are, and says of each that it has an old form.
type outdatedTransformer struct{ *hookedTransformer }

func (outdatedTransformer) TransformFromStorage(_ context.Context, data []byte,
	_ value.Context) ([]byte, bool, error) {
	return data, true, nil
}

// TestOldFormIsWrittenAnew: an update that changes nothing writes an object whose stored form is
// old, as after a rotation of encryption keys.
func TestOldFormIsWrittenAnew(t *testing.T) {
	store := memory(t)
	c := podConfig()
	c.Transformer = outdatedTransformer{}
	for form, r := range map[string]*objectStore{"old": open(t, store, c), "present": pods(t, store)} {
		first := create(t, r, pod(form))
		out := &example.Pod{}
		if err := r.GuaranteedUpdate(t.Context(), podKey(form), out, false, nil,
			changing(func(*example.Pod) error { return nil }), nil); err != nil {
			t.Fatal(err)
		}
		if written := revisionOf(t, out) > revisionOf(t, first); written != (form == "old") {
			t.Errorf("an update that changes nothing, of the %s form: written: %t", form, written)
		}
	}
}

// TestNoChangeOfAnOutdatedSuggestion: an update that would change nothing of an outdated suggestion
// changes what is stored.
func TestNoChangeOfAnOutdatedSuggestion(t *testing.T) {
	r := pods(t, memory(t))
	old := create(t, r, pod("a"))
	current, err := label(t.Context(), r, "a", "new")
	if err != nil {
		t.Fatal(err)
	}
	out := &example.Pod{}
	if err := r.GuaranteedUpdate(t.Context(), podKey("a"), out, false, nil,
		changing(func(p *example.Pod) error {
			p.Labels = nil
			return nil
		}), old); err != nil {
		t.Fatal(err)
	}
	if revisionOf(t, out) <= revisionOf(t, current) || len(out.Labels) > 0 {
		t.Errorf("the pod is %+v after %+v", out.ObjectMeta, current.ObjectMeta)
	}
}

// TestSuggestionOfAnEarlierHistory: an object that was cached before the history changed is not
// what an update begins with, though its revision stands in the database: for something else,
// perhaps.
func TestSuggestionOfAnEarlierHistory(t *testing.T) {
	db := memory(t)
	r := pods(t, db)
	cached := create(t, r, pod("a"))
	cached.Labels = map[string]string{"of": "a history that is lost"}
	if _, err := db.Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it was written in this history
		out := &example.Pod{}
		if err := r.GuaranteedUpdate(t.Context(), podKey("a"), out, false, nil, changing(counting),
			cached.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		if len(out.Labels) > 0 {
			t.Errorf("an update has written the labels %v", out.Labels)
		}
	}
	now, err := label(t.Context(), r, "a", "new")
	if err != nil {
		t.Fatal(err)
	}
	now.Labels["cached"] = "now"
	out := &example.Pod{}
	if err := r.GuaranteedUpdate(t.Context(), podKey("a"), out, false, nil, changing(counting),
		now); err != nil {
		t.Fatal(err)
	}
	if out.Labels["cached"] != "now" {
		t.Error("what was cached in this history is not used")
	}
}

// TestVerdictsOnSuggestions: an error that was made of an outdated suggestion is not the last word,
// one made of a current suggestion is, after one read.
func TestVerdictsOnSuggestions(t *testing.T) {
	r := pods(t, memory(t))
	old := create(t, r, pod("a"))
	current, err := label(t.Context(), r, "a", "new")
	if err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	for name, test := range map[string]struct {
		suggestion *example.Pod
		calls      int
		err        error
	}{
		"outdated": {old, 2, nil},
		"current":  {current, 1, refused},
		"none":     {nil, 1, nil},
	} {
		t.Run("update, "+name, func(t *testing.T) {
			calls := 0
			var suggestion runtime.Object
			if test.suggestion != nil {
				suggestion = test.suggestion.DeepCopy()
			}
			err := r.GuaranteedUpdate(t.Context(), podKey("a"), &example.Pod{}, false, nil,
				changing(func(*example.Pod) error {
					calls++
					if calls == 1 && test.suggestion != nil {
						return refused
					}
					return nil
				}), suggestion)
			if calls != test.calls || !errors.Is(err, test.err) {
				t.Errorf("%d calls, %v", calls, err)
			}
		})
		t.Run("delete, "+name, func(t *testing.T) {
			calls := 0
			var suggestion runtime.Object
			if test.suggestion != nil {
				suggestion = test.suggestion.DeepCopy()
			}
			stop := errors.New("not deleted, so that the next test has it")
			err := r.Delete(t.Context(), podKey("a"), &example.Pod{}, nil,
				func(context.Context, runtime.Object) error {
					calls++
					if calls == 1 && test.suggestion != nil {
						return refused
					}
					return stop
				}, suggestion, apistorage.DeleteOptions{})
			want := test.err
			if want == nil {
				want = stop
			}
			if calls != test.calls || !errors.Is(err, want) {
				t.Errorf("%d calls, %v", calls, err)
			}
		})
	}
}

// TestSuggestionsWithoutRevision say that the object does not exist; whoever does not want to
// create it gets what is there.
func TestSuggestionsWithoutRevision(t *testing.T) {
	r := pods(t, memory(t))
	out := &example.Pod{}
	update := func(orCreate bool) error {
		return r.GuaranteedUpdate(t.Context(), podKey("a"), out, orCreate, nil, changing(counting),
			pod("a"))
	}
	deletion := func() error {
		return r.Delete(t.Context(), podKey("a"), out, nil, apistorage.ValidateAllObjectFunc,
			pod("a"), apistorage.DeleteOptions{})
	}
	if err := update(false); !apistorage.IsNotFound(err) {
		t.Errorf("update: %v", err)
	}
	if err := deletion(); !apistorage.IsNotFound(err) {
		t.Errorf("delete: %v", err)
	}
	if err := update(true); err != nil || out.Generation != 1 || out.Name != "a" {
		t.Errorf("create: %v %v", err, out)
	}
	if err := update(true); err != nil || out.Generation != 2 {
		t.Errorf("update of what exists: %v %v", err, out)
	}
	if err := deletion(); err != nil || out.Generation != 2 {
		t.Errorf("delete of what exists: %v %v", err, out)
	}
}

// TestTimeToLive: an object expires by its own event, and an update without a time to live makes it
// stay.
func TestTimeToLive(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		r := pods(t, openDatabase(t, d, mvcc.Config{}))
		w := startWatch(t, r, apistorage.ListOptions{ResourceVersion: "1"})
		for _, name := range []string{"stays", "goes"} {
			if err := r.Create(t.Context(), podKey(name), pod(name), nil, 1); err != nil {
				t.Fatal(err)
			}
			if name == "stays" {
				if _, err := label(t.Context(), r, name, "x"); err != nil {
					t.Fatal(err)
				}
			}
		}
		var last watch.Event
		for _, want := range []string{"ADDED stays ", "MODIFIED stays x", "ADDED goes ",
			"DELETED goes "} {
			last = next(t, w)
			if got := brief(t, last); got != want {
				t.Fatalf("got %s, want %s", got, want)
			}
		}
		l := list(t, r, apistorage.ListOptions{})
		if len(l.Items) != 1 || l.Items[0].Name != "stays" ||
			l.ResourceVersion != itoa(revisionOf(t, last.Object)) {
			t.Errorf("at revision %s there are %v", l.ResourceVersion, l.Items)
		}
	})
	if got := lifetime(1 << 63); got != longest {
		t.Errorf("a very long time is %v", got)
	}
	if got := lifetime(90); got != 90*time.Second {
		t.Errorf("90 seconds are %v", got)
	}
}

// reentrantTransformer uses the store while the store uses it.
type reentrantTransformer struct {
	value.Transformer
	r       *objectStore
	entered bool
}

func (r *reentrantTransformer) TransformToStorage(ctx context.Context, data []byte,
	dataCtx value.Context) ([]byte, error) {
	if !r.entered {
		r.entered = true
		if err := r.r.Create(ctx, podKey("from the transformer"), pod("t"), nil, 0); err != nil {
			return nil, err
		}
	}
	return r.Transformer.TransformToStorage(ctx, data, dataCtx)
}

// TestCallbacksMayUseTheStore: nothing is held while the caller's functions run, not even with a
// single connection.
func TestCallbacksMayUseTheStore(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		store := openDatabase(t, d, mvcc.Config{})
		plain := pods(t, store)
		create(t, plain, pod("a"))
		c := podConfig()
		c.Transformer = &reentrantTransformer{Transformer: plain.objects.transformer, r: plain}
		r := open(t, store, c)
		var depth int
		var update func(name string) error
		update = func(name string) error {
			return r.GuaranteedUpdate(t.Context(), podKey(name), &example.Pod{}, true, nil,
				changing(func(p *example.Pod) error {
					if depth++; depth < 10 {
						if err := update("nested-" + strconv.Itoa(depth)); err != nil {
							return err
						}
					}
					p.ObjectMeta = metav1.ObjectMeta{Name: name, Namespace: "ns",
						Labels: map[string]string{"value": "nested"}}
					return nil
				}), nil)
		}
		if err := update("a"); err != nil {
			t.Fatal(err)
		}
		err := r.Delete(t.Context(), podKey("a"), &example.Pod{}, nil,
			func(ctx context.Context, _ runtime.Object) error {
				_, err := tryList(ctx, r, apistorage.ListOptions{})
				return err
			}, nil, apistorage.DeleteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if l := list(t, r, apistorage.ListOptions{}); len(l.Items) != 10 {
			t.Errorf("%d objects", len(l.Items))
		}
	})
}

// TestTurns: whoever waits too long goes on without a turn, and nothing is kept of a key that
// nobody wants.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turns turns
		first := turns.take(t.Context(), "k")
		other := turns.take(t.Context(), "other")
		began := time.Now()
		impatient := turns.take(t.Context(), "k")
		if waited := time.Since(began); waited != patience {
			t.Errorf("a turn was waited for for %v", waited)
		}
		impatient.giveBack()
		var order []string
		var wg sync.WaitGroup
		wg.Go(func() {
			second := turns.take(t.Context(), "k")
			order = append(order, "second")
			if w := second.left(); w == nil || w.kv.Revision != 7 {
				t.Errorf("the first has left %v to the second", w)
			}
			second.giveBack()
		})
		synctest.Wait()
		order = append(order, "first")
		first.leave(&written{kv: mvcc.KeyValue{Revision: 7}})
		impatient.leave(&written{kv: mvcc.KeyValue{Revision: 6}}) // it never had the turn
		first.giveBack()
		wg.Wait()
		if len(order) != 2 || order[0] != "first" {
			t.Errorf("the order is %v", order)
		}
		other.giveBack()
		if len(turns.keys) != 0 {
			t.Errorf("%d keys are kept", len(turns.keys))
		}
	})
}

// TestNestedLosers: a function that writes the object that it is called for, and loses, too, does
// not wait for ever for its own caller's turn.
func TestNestedLosers(t *testing.T) {
	r := pods(t, memory(t))
	create(t, r, pod("a"))
	update := func(out *example.Pod, change func(p *example.Pod) error) error {
		return r.GuaranteedUpdate(t.Context(), podKey("a"), out, false, nil, changing(change), nil)
	}
	// A writer in the middle of an update loses against this one.
	interfere := func() error { return update(&example.Pod{}, counting) }
	outer, inner := 0, 0
	out := &example.Pod{}
	err := update(out, func(p *example.Pod) error {
		p.Generation++
		switch outer++; outer {
		case 1:
			return interfere()
		case 2: // now it is this update's turn
			return update(&example.Pod{}, func(p *example.Pod) error {
				p.Generation++
				if inner++; inner == 1 {
					return interfere()
				}
				return nil
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if outer != 3 || inner != 2 || out.Generation != 4 {
		t.Errorf("%d and %d attempts, counted to %d", outer, inner, out.Generation)
	}
}

// TestSizesAreBounded: keys whose deletion was never seen are forgotten.
func TestSizesAreBounded(t *testing.T) {
	r := pods(t, memory(t))
	existing := []string{"/pods/ns/a", "/registry/pods/ns/b"}
	if err := r.EnableResourceSizeEstimation(func(context.Context) ([]string, error) {
		return existing, nil
	}); err != nil {
		t.Fatal(err)
	}
	if r.EnableResourceSizeEstimation(func(context.Context) ([]string, error) {
		return nil, nil
	}) == nil {
		t.Error("it can be enabled twice")
	}
	n := r.sizes.Load()
	size := func() int {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.keys)
	}
	for i := range 3 * spareKeys {
		n.observe([]mvcc.KeyValue{{Key: contract.Key("/registry" + podKey(numbered(i))),
			Revision: contract.Revision(i + 2), Value: make([]byte, 100)}})
	}
	n.observe([]mvcc.KeyValue{
		{Key: "/registry/pods/ns/a", Revision: 10, Value: make([]byte, 30)},
		{Key: "/registry/pods/ns/b", Revision: 10, Value: make([]byte, 10)},
		{Key: "/registry/pods/ns/b", Revision: 9, Value: make([]byte, 1000)}, // older
	})
	eventually(t, "the keys that do not exist to be forgotten", func() bool {
		return size() <= spareKeys+2*len(existing)
	})
	stats, err := r.Stats(t.Context())
	if err != nil || stats.ObjectCount != 2 || stats.EstimatedAverageObjectSizeBytes != 20 ||
		size() != 2 {
		t.Errorf("got %+v, %v, and %d keys are kept", stats, err, size())
	}
	n.follow([]*mvcc.Event{
		{Key: "/registry/pods/ns/a", Revision: 9, Prev: 1, Deleted: true}, // older
		{Key: "/registry/pods/ns/b", Revision: 11, Prev: 10, Deleted: true},
	})
	existing = existing[:1]
	if stats, err = r.Stats(t.Context()); err != nil || stats.ObjectCount != 1 ||
		stats.EstimatedAverageObjectSizeBytes != 30 {
		t.Errorf("got %+v, %v", stats, err)
	}
}

// TestUpdateOverAFence: an update that read before a fence, and writes after it, reads again.
func TestUpdateOverAFence(t *testing.T) {
	store := memory(t)
	r := pods(t, store)
	create(t, r, pod("a"))
	tries := 0
	out := &example.Pod{}
	if err := r.GuaranteedUpdate(t.Context(), podKey("a"), out, false, nil,
		changing(func(p *example.Pod) error {
			if tries++; tries == 1 {
				if _, err := store.Fence(t.Context()); err != nil {
					return err
				}
			}
			return counting(p)
		}), nil); err != nil {
		t.Fatal(err)
	}
	if tries != 2 {
		t.Errorf("the function was called %d times, want once before the fence and once after it",
			tries)
	}
}
