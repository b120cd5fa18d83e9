package storage

import (
	"bytes"
	"reflect"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

func backup(t testing.TB, store *Store) []byte {
	t.Helper()
	var buf bytes.Buffer
	b, err := store.WriteBackup(t.Context(), &buf, nil)
	if err != nil {
		t.Fatal(err)
	}
	if read, err := ReadBackup(bytes.NewReader(buf.Bytes()), nil); err != nil || read != b {
		t.Fatalf("written %+v, read %+v, %v", b, read, err)
	}
	return buf.Bytes()
}

func restore(t testing.TB, store *Store, file []byte, o RestoreOptions) (Backup, int64) {
	t.Helper()
	b, revision, err := store.RestoreBackup(t.Context(), bytes.NewReader(file), o)
	if err != nil {
		t.Fatal(err)
	}
	return b, revision
}

// noCompaction leaves maintenance to the test.
var noCompaction = mvcc.Config{Compaction: mvcc.CompactionPolicy{Window: -1}}

// TestRestoreUnderServers: another process's watches end with 410, and its reads and writes go on
// in the new history.
func TestRestoreUnderServers(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		server := openDatabase(t, d, noCompaction)
		r := pods(t, server)
		create(t, r, pod("kept"))
		file := backup(t, server)
		before := list(t, r, apistorage.ListOptions{})
		if _, err := label(t.Context(), r, "kept", "changed"); err != nil {
			t.Fatal(err)
		}
		last := create(t, r, pod("new"))
		w := startWatch(t, r, everything(last.ResourceVersion))

		process := openDatabase(t, d, noCompaction)
		_, revision := restore(t, process, file, RestoreOptions{Replace: true})
		if event := next(t, w); event.Type != watch.Error {
			t.Errorf("the watch of the server got %v", event)
		} else if err := apierrors.FromObject(event.Object); !apierrors.IsResourceExpired(err) &&
			!apierrors.IsGone(err) {
			t.Errorf("the watch of the server ended with %v", err)
		}
		if got := list(t, r, apistorage.ListOptions{}); !reflect.DeepEqual(got.Items, before.Items) {
			t.Errorf("the server has %v, want %v", got.Items, before.Items)
		}
		if err := r.Get(t.Context(), podKey("new"), apistorage.GetOptions{},
			&example.Pod{}); !apistorage.IsNotFound(err) {
			t.Errorf("what was created after the backup: %v", err)
		}
		out, err := label(t.Context(), r, "kept", "after")
		if err != nil {
			t.Fatal(err)
		}
		if out.ResourceVersion != itoa(revision+1) {
			t.Errorf("the first write has resourceVersion %s, after the restore's %d",
				out.ResourceVersion, revision)
		}
		err = r.GetList(t.Context(), "/pods/",
			apistorage.ListOptions{ResourceVersion: last.ResourceVersion,
				ResourceVersionMatch: "Exact", Predicate: apistorage.Everything, Recursive: true},
			&example.PodList{})
		if !apierrors.IsResourceExpired(err) {
			t.Errorf("a list at a revision of the old history: %v", err)
		}
	})
}

// TestRestoreOfAnotherStore: what a client remembers of an object, by its resourceVersion, is of no
// use after a backup of another store was restored, in which the same one stands for another
// object.
func TestRestoreOfAnotherStore(t *testing.T) {
	source := openDatabase(t, dbtest.Open(t, dbtest.SQLite), noCompaction)
	other := create(t, pods(t, source), labeled("the other"))
	file := backup(t, source)
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		server, process := openDatabase(t, d, noCompaction), openDatabase(t, d, noCompaction)
		s := pods(t, server)
		known := create(t, s, labeled("this one"))
		if other.ResourceVersion != known.ResourceVersion {
			t.Fatalf("the objects have the resourceVersions %s and %s, and should have the same",
				other.ResourceVersion, known.ResourceVersion)
		}
		w := startWatch(t, s, everything(known.ResourceVersion))
		if b, _ := restore(t, process, file, RestoreOptions{Replace: true}); !b.Renumbered {
			t.Error("the restore does not say that the resourceVersions are new")
		}
		if event := next(t, w); event.Type != watch.Error {
			t.Errorf("the watch of the server got %v", event)
		}
		err := s.GuaranteedUpdate(t.Context(), podKey("both"), &example.Pod{}, false, nil,
			func(input runtime.Object, _ apistorage.ResponseMeta) (runtime.Object, *uint64, error) {
				p := input.(*example.Pod)
				if p.ResourceVersion == known.ResourceVersion {
					t.Error("the object has the resourceVersion that another one had")
				}
				if p.Labels["of"] != "the other" {
					t.Errorf("the object has the labels %v", p.Labels)
				}
				p.Labels["written"] = "after"
				return p, nil, nil
			}, nil)
		if err != nil {
			t.Error(err)
		}
	})
}

func labeled(of string) *example.Pod {
	p := pod("both")
	p.Labels = map[string]string{"of": of}
	return p
}
