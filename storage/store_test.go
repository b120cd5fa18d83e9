package storage

import (
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/apis/example"
	apistorage "k8s.io/apiserver/pkg/storage"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// TestPrefixesAndDatabases: prefixes of one database and databases of one process do not see each
// other's objects, but prefixes share the history.
func TestPrefixesAndDatabases(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		one := openDatabase(t, d, mvcc.Config{})
		other := openDatabase(t, dbtest.Open(t, d.Kind), mvcc.Config{})
		c := podConfig()
		c.Prefix = "/elsewhere/deep"
		stores := map[string]*objectStore{"registry": pods(t, one), "elsewhere": open(t, one, c),
			"other database": pods(t, other)}
		revisions := map[string]uint64{}
		for name, r := range stores {
			p := pod("same")
			p.Labels = map[string]string{"value": name}
			revisions[name] = revisionOf(t, create(t, r, p))
		}
		if revisions["registry"] == revisions["elsewhere"] {
			t.Error("two writes of one database have the same revision")
		}
		for name, r := range stores {
			if l := list(t, r, apistorage.ListOptions{}); len(l.Items) != 1 ||
				l.Items[0].Labels["value"] != name {
				t.Errorf("%s has %v", name, l.Items)
			}
		}
	})
}

func TestNewStoreRejectsWhatCannotWork(t *testing.T) {
	store := memory(t)
	for name, change := range map[string]func(*ResourceConfig){
		"no codec":           func(c *ResourceConfig) { c.Codec = nil },
		"no resource prefix": func(c *ResourceConfig) { c.ResourcePrefix = "" },
		"the root":           func(c *ResourceConfig) { c.ResourcePrefix = "/" },
		"relative":           func(c *ResourceConfig) { c.ResourcePrefix = "pods" },
	} {
		c := podConfig()
		change(&c)
		if _, _, err := store.Resource(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestKeys(t *testing.T) {
	for prefix, want := range map[string]string{
		"":                  "/pods/ns/a",
		"/":                 "/pods/ns/a",
		"custom/prefix":     "/custom/prefix/pods/ns/a",
		"/custom//prefix//": "/custom/prefix/pods/ns/a",
	} {
		k, err := newKeySpace(prefix, "/pods")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := k.object("/pods/ns/a"); string(got) != want || err != nil {
			t.Errorf("prefix %q makes %q, %v", prefix, got, err)
		}
		if got, err := k.directory("/pods/ns"); string(got) != want[:len(want)-1] || err != nil {
			t.Errorf("prefix %q makes %q, %v", prefix, got, err)
		}
		for _, bad := range []string{"", "/", ".", "..", "/pods/../x", "/pods/./x", "/pods/..",
			"/nodes/a"} {
			if got, err := k.object(bad); err == nil {
				t.Errorf("%q makes %q", bad, got)
			}
		}
	}
}

func TestDatabaseForOperators(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		store := openDatabase(t, d, mvcc.Config{})
		r := pods(t, store)
		create(t, r, pod("a"))
		updated, err := label(t.Context(), r, "a", "x")
		if err != nil {
			t.Fatal(err)
		}
		head, err := store.CurrentRevision(t.Context())
		if err != nil || uint64(head) != revisionOf(t, updated) {
			t.Errorf("the newest revision is %d, %v", head, err)
		}
		if err := store.Compact(t.Context(), head); err != nil {
			t.Fatal(err)
		}
		if store.CompactedRevision() != head || r.CompactRevision() != head {
			t.Errorf("compacted %d, %d", store.CompactedRevision(), r.CompactRevision())
		}
		if size, err := store.Size(t.Context()); err != nil || size.Live > size.Total ||
			size.Total <= 0 && !dbtest.OnTiDB(d.Kind) {
			t.Errorf("size %v, %v", size, err)
		}
		if err := store.Ready(t.Context()); err != nil {
			t.Error(err)
		}
		// After a fence, watches begin anew, and the objects are there as they were.
		w := startWatch(t, r, apistorage.ListOptions{ResourceVersion: updated.ResourceVersion})
		fenced, err := store.Fence(t.Context())
		if err != nil || fenced < head+1<<24 {
			t.Fatalf("fenced at %d, %v", fenced, err)
		}
		if got := brief(t, next(t, w)); got != "ERROR 410 Expired" {
			t.Errorf("got %s", got)
		}
		ended(t, w)
		out := &example.Pod{}
		if err := r.Get(t.Context(), podKey("a"), apistorage.GetOptions{}, out); err != nil ||
			out.ResourceVersion != updated.ResourceVersion {
			t.Errorf("after the fence: %v, %v", out, err)
		}
		if l := list(t, r, apistorage.ListOptions{}); revisionOf(t, &l.Items[0]) != revisionOf(t,
			updated) || l.ResourceVersion != itoa(fenced) {
			t.Errorf("after the fence, the list is at %s, want %d", l.ResourceVersion, fenced)
		}
	})
}

func TestConsistentReadsAreSupported(t *testing.T) {
	memory(t)
	if !etcdfeature.DefaultFeatureSupportChecker.Supports(apistorage.RequestWatchProgress) {
		t.Error("watch caches will not serve consistent reads")
	}
	etcdfeature.DefaultFeatureSupportChecker.MarkUnsupported(apistorage.RangeStream)
	if etcdfeature.DefaultFeatureSupportChecker.Supports(apistorage.RangeStream) {
		t.Error("other features are not left to upstream's checker")
	}
}

// TestConfig: what Config says reaches the database.
func TestConfig(t *testing.T) {
	d := dbtest.Open(t, dbtest.SQLite)
	config := Config{URL: d.URL, Drivers: []Driver{d.Driver}}
	if _, err := Open(t.Context(), config); err == nil {
		t.Fatal("a database without a schema was opened")
	}
	var offset atomic.Int64
	config.Migrate = true
	config.Clock = func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }
	config.Compaction = CompactionPolicy{Window: time.Nanosecond, Keep: 3,
		Interval: time.Millisecond}
	store, err := Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	r := pods(t, store)
	for i := range 10 {
		create(t, r, pod(numbered(i)))
	}
	const head = 11
	eventually(t, "the compaction of all but the newest revisions", func() bool {
		return store.CompactedRevision() == head-3
	})
	if err := r.Create(t.Context(), podKey("mortal"), pod("mortal"), nil, 3600); err != nil {
		t.Fatal(err)
	}
	offset.Store(int64(2 * time.Hour))
	// The next object that expires lets the database look at its clock.
	if err := r.Create(t.Context(), podKey("short-lived"), pod("short-lived"), nil, 1); err != nil {
		t.Fatal(err)
	}
	offset.Store(int64(3 * time.Hour))
	eventually(t, "the objects to expire", func() bool {
		return len(list(t, r, apistorage.ListOptions{}).Items) == 10
	})

	migrations, err := Migrations(t.Context(), config)
	if err != nil || len(migrations) == 0 || migrations[0].Applied.IsZero() {
		t.Errorf("the migrations are %v, %v", migrations, err)
	}
}
