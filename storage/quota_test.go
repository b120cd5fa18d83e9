package storage

import (
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// TestQuotaLetsGo: a store that is opened with its quota used up refuses what grows, and not what
// leads to the deletion of an object, though that may grow, too.
func TestQuotaLetsGo(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		config := mvcc.Config{QuotaInterval: time.Hour} // so it is measured only at the opening
		before := pods(t, openDatabase(t, d, config))
		p := pod("kept")
		p.Finalizers = []string{"example.com/a", "example.com/b"}
		create(t, before, p)
		if err := LimitStore(t.Context(), Config{URL: d.URL, Drivers: []Driver{d.Driver}},
			StoreQuota{Bytes: 1}); err != nil {
			t.Fatal(err)
		}
		r := pods(t, openDatabase(t, d, config))
		eventually(t, "the store is measured", func() bool {
			err := r.Create(t.Context(), podKey("new"), pod("new"), nil, 0)
			if err == nil {
				remove(t, r, "new")
			}
			return apierrors.IsForbidden(err)
		})
		update := func(what string, refused bool, change func(p *example.Pod)) {
			t.Helper()
			err := r.GuaranteedUpdate(t.Context(), podKey("kept"), &example.Pod{}, false, nil,
				changing(func(p *example.Pod) error {
					change(p)
					return nil
				}), nil)
			if err != nil && !apierrors.IsForbidden(err) || (err != nil) != refused {
				t.Errorf("%s: %v", what, err)
			}
		}
		grow := func(p *example.Pod) { p.Labels = map[string]string{"long": "a-long-value"} }
		update("growth", true, grow)
		update("the beginning of a deletion", false, func(p *example.Pod) {
			now := metav1.Now()
			p.DeletionTimestamp = &now
		})
		update("growth while it is deleted", true, grow)
		update("a finalizer less, and growth", false, func(p *example.Pod) {
			p.Finalizers = p.Finalizers[1:]
			p.Labels = map[string]string{"long": "a value that is longer than a finalizer's name"}
		})
		remove(t, r, "kept")
	})
}
