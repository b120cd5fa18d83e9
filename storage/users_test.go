package storage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	endpointsrequest "k8s.io/apiserver/pkg/endpoints/request"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// asUser is the context of a request.
func asUser(t testing.TB, name, id string) context.Context {
	ctx := audit.WithAuditContext(t.Context())
	audit.WithAuditID(ctx, types.UID(id))
	return endpointsrequest.WithUser(ctx, &user.DefaultInfo{Name: name})
}

// TestUsers: of a resource that records them, each write has the user and the audit ID of its
// request. What no request has written has none, and of other resources nothing is recorded.
func TestUsers(t *testing.T) {
	for _, recorded := range []string{"pods", "services"} {
		db, err := Open(t.Context(), Config{URL: "memory:", Migrate: true,
			Drivers: []Driver{dbtest.Driver(dbtest.Memory)},
			Users:   func(r schema.GroupResource) bool { return r.Resource == recorded }})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		r := pods(t, db)
		const account = "system:serviceaccount:ns:"
		long := account + strings.Repeat("n", 600)
		if err := r.Create(asUser(t, "alice", "1"), podKey("a"), pod("a"), nil, 0); err != nil {
			t.Fatal(err)
		}
		for i, ctx := range []context.Context{asUser(t, "bob", "2"), t.Context(),
			asUser(t, long, strings.Repeat("i", 70)), asUser(t, "nul\x00", ""),
			endpointsrequest.WithUser(t.Context(), &user.DefaultInfo{Name: "unaudited"})} {
			if _, err := label(ctx, r, "a", fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		// An update that changes nothing is not written.
		if _, err := label(asUser(t, "mallory", "m"), r, "a", "4"); err != nil {
			t.Fatal(err)
		}
		if err := r.Delete(asUser(t, "carol", "3"), podKey("a"), &example.Pod{}, nil,
			apistorage.ValidateAllObjectFunc, nil, apistorage.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		page, _, err := pastOf(t, r, History{Earlier: true})
		if err != nil {
			t.Fatal(err)
		}
		of, _, err := pastOf(t, r, History{Name: "a", Earlier: true})
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"carol 3", "unaudited ", "nul\ufffd ",
			long[:509] + "… " + strings.Repeat("i", 61) + "…", " ", "bob 2", "alice 1"}
		if recorded != "pods" {
			want = slices.Repeat([]string{" "}, len(want))
		}
		for _, changes := range [][]Change{page.Changes, of.Changes} {
			var got []string
			for _, c := range changes {
				got = append(got, c.User+" "+c.AuditID)
			}
			if !slices.Equal(got, want) {
				t.Errorf("with the users of %s, they are %q, want %q", recorded, got, want)
			}
		}
		if recorded == "pods" {
			at, _, err := pastOf(t, r, History{Name: "a", At: &Moment{Revision: 3}, Earlier: true})
			if err != nil || len(at.Changes) != 1 || at.Changes[0].User != "bob" {
				t.Errorf("the state at 3 is of %+v, %v", at.Changes, err)
			}
		}
	}
}

// BenchmarkUsers compares writes whose users are recorded with writes whose users are not. An
// iteration is two rounds, one of each, in alternating order: 64 writers create 4,000 objects of
// 1 KB, and update each once. What is reported is the median of the pairs: recorded ÷ not. The
// processor time is that of this process, and where there is a server, of all database servers of
// the machine.
//
// The window is "short", so that each write comes with the sweep of an older one, as it does with
// every window once the store is as old as that, or "long", so that nothing is swept meanwhile.
func BenchmarkUsers(b *testing.B) {
	eachKind(b, func(b *testing.B, d dbtest.DB) {
		for _, window := range []string{"short", "long"} {
			c := mvcc.Config{Compaction: mvcc.CompactionPolicy{Window: -1}}
			if window == "short" {
				c.Compaction = mvcc.CompactionPolicy{Window: time.Second, Keep: 1000,
					Interval: 500 * time.Millisecond}
			}
			b.Run("window="+window, func(b *testing.B) {
				store := openDatabase(b, d, c)
				on, off := pods(b, store), pods(b, store)
				on.users = true
				ratios := map[string][]float64{}
				usersRound(b, d, off) // what is prepared at first
				b.ResetTimer()
				for i := range b.N {
					var of [2]map[string]float64
					for _, second := range []bool{false, true} {
						if recorded := second == (i%2 == 0); recorded {
							of[1] = usersRound(b, d, on)
						} else {
							of[0] = usersRound(b, d, off)
						}
					}
					for what, n := range of[0] {
						ratios[what] = append(ratios[what], of[1][what]/n)
					}
				}
				for what, of := range ratios {
					slices.Sort(of)
					b.ReportMetric(of[len(of)/2], what+"-on/off")
				}
			})
		}
	})
}

// usersRound creates objects and updates them, and returns how long that took and the processor
// time.
func usersRound(b *testing.B, d dbtest.DB, r *objectStore) map[string]float64 {
	const objects, writers = 4000, 64
	run := runs.Add(1)
	took := map[string]float64{}
	processor := func() time.Duration {
		if d.Kind == dbtest.SQLite {
			return processorTime()
		}
		servers, _ := dbtest.Usage()
		return processorTime() + servers
	}
	phase := func(what string, write func(ctx context.Context, name string) error) {
		var (
			next  atomic.Int64
			group sync.WaitGroup
		)
		began, before := time.Now(), processor()
		for writer := range writers {
			ctx := asUser(b, fmt.Sprint("system:serviceaccount:default:writer-", writer),
				"01234567-89ab-cdef-0123-456789abcdef")
			group.Go(func() {
				for i := next.Add(1); i <= objects; i = next.Add(1) {
					if err := write(ctx, fmt.Sprintf("%d-%d", run, i)); err != nil {
						b.Error(err)
					}
				}
			})
		}
		group.Wait()
		took[what] = time.Since(began).Seconds()
		took[what+"-cpu"] = (processor() - before).Seconds()
	}
	phase("creates", func(ctx context.Context, name string) error {
		return r.Create(ctx, podKey(name), large(name), &example.Pod{}, 0)
	})
	phase("updates", func(ctx context.Context, name string) error {
		_, err := label(ctx, r, name, "updated")
		return err
	})
	return took
}
