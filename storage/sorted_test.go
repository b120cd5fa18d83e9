package storage

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// sortedBy lists a page, and returns the tokens of those around it.
func sortedBy(t testing.TB, s apistorage.Interface, by Sort, opts apistorage.ListOptions) (
	page *example.PodList, before, after string) {
	t.Helper()
	by.Pages = func(b, a string) { before, after = b, a }
	opts.Recursive = true
	page = &example.PodList{}
	if err := s.GetList(WithSort(t.Context(), &by), "/pods", opts, page); err != nil {
		t.Fatal(err)
	}
	if page.Continue != after {
		t.Fatalf("the list continues at %q, not %q", page.Continue, after)
	}
	return page, before, after
}

// said is what a pod says to an index, and false if it says nothing.
func said(p *example.Pod, index string) (value string, ok bool) {
	switch index {
	case "created":
		return p.CreationTimestamp.UTC().Format(time.RFC3339), true
	case "label:app":
		value, ok = p.Labels["app"]
		return value, ok
	}
	return p.Spec.NodeName, true
}

// TestSortedLists walks through random lists by random indexes, forwards and back, page by page,
// while objects are written by one that knows what they say and by etcd's API, which does not. It
// compares them with the list of all objects at the same revision. Meanwhile an index is built
// anew.
func TestSortedLists(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		r := indexedPods(t, openDatabase(t, d, mvcc.Config{}))
		rng := rand.New(rand.NewPCG(7, 8))
		names := []string{"created", "label:app", "field:spec.nodeName"}
		values := []string{"", "9", "10", "-1", "b", "a", "a.1"}
		random := func(p *example.Pod) {
			if p.Labels = map[string]string{"tier": strconv.Itoa(rng.IntN(9))}; rng.IntN(4) > 0 {
				p.Labels["app"] = values[rng.IntN(len(values))]
			}
			p.Spec.NodeName = values[rng.IntN(len(values))]
			if p.CreationTimestamp.IsZero() {
				p.CreationTimestamp = metav1.Unix(1_800_000_000+rng.Int64N(10), 0)
			}
		}
		write := func() { writeRandomly(t, rng, r, 50, random) }
		declare(t, r, append(names, "label:tier")...)
		for range 60 {
			write()
		}
		built(t, r)
		var old []string
		for i := range 60 {
			write()
			by := Sort{By: names[rng.IntN(len(names))], Descending: rng.IntN(2) == 0}
			opts := selecting(t, []string{"", "", "tier=1", "tier!=1", "tier in (1,2,3)"}[rng.IntN(5)], "")
			opts.Predicate.Limit = int64(rng.IntN(9))
			if rng.IntN(3) == 0 && len(old) > 0 {
				opts.ResourceVersion = old[rng.IntN(len(old))]
				opts.ResourceVersionMatch = metav1.ResourceVersionMatchExact
			}
			first, before, after := sortedBy(t, r, by, opts)
			if before != "" {
				t.Fatal("there is a page before the first one")
			}
			old = append(old, first.ResourceVersion)
			all := listBy(t, r, apistorage.ListOptions{Predicate: apistorage.Everything,
				ResourceVersion:      first.ResourceVersion,
				ResourceVersionMatch: metav1.ResourceVersionMatchExact})
			var want []string
			slices.SortFunc(all.Items, func(a, b example.Pod) int {
				x, _ := said(&a, by.By)
				y, _ := said(&b, by.By)
				order := cmp.Or(strings.Compare(string(contract.ValueEntry(1, x)),
					string(contract.ValueEntry(1, y))), strings.Compare(a.Name, b.Name))
				if by.Descending {
					return -order
				}
				return order
			})
			for _, p := range all.Items {
				_, ok := said(&p, by.By)
				if matches, err := opts.Predicate.Matches(&p); ok && matches && err == nil {
					want = append(want, p.Name+"@"+p.ResourceVersion)
				}
			}
			pages := [][]string{}
			add := func(page *example.PodList) {
				if n := len(page.Items); opts.Predicate.Limit > 0 && n > int(opts.Predicate.Limit) {
					t.Fatalf("a page has %d objects", n)
				}
				if page.ResourceVersion != first.ResourceVersion {
					t.Fatalf("the page is at %s, not %s", page.ResourceVersion, first.ResourceVersion)
				}
				names := []string{}
				for _, p := range page.Items {
					names = append(names, p.Name+"@"+p.ResourceVersion)
				}
				pages = append(pages, names)
			}
			add(first)
			if opts.ResourceVersion, opts.ResourceVersionMatch = "", ""; i%10 == 0 {
				anew := func(x *contract.Indexes) (bool, error) {
					x.Drop(r.keys.all(), by.By)
					return true, x.Add(contract.Directory{Path: r.keys.all(), Resource: "pods"}, by.By)
				}
				if _, err := r.mvcc.ChangeIndexes(t.Context(), anew); err != nil {
					t.Fatal(err)
				}
				built(t, r)
			}
			for after != "" {
				write()
				opts.Predicate.Continue = after
				var page *example.PodList
				page, before, after = sortedBy(t, r, by, opts)
				add(page)
			}
			if got := slices.Concat(pages...); !slices.Equal(got, want) {
				t.Fatalf("the list by %+v of %s with the limit %d is\n%q, not\n%q", by,
					opts.Predicate.Label, opts.Predicate.Limit, got, want)
			}
			back := slices.Clone(pages[len(pages)-1])
			for before != "" {
				write()
				opts.Predicate.Continue = before
				var page *example.PodList
				pages = nil
				page, before, after = sortedBy(t, r, by, opts)
				add(page)
				back = append(slices.Clone(pages[0]), back...)
				if after == "" {
					t.Fatal("nothing follows a page before another one")
				}
			}
			if !slices.Equal(back, want) {
				t.Fatalf("the list by %+v of %s with the limit %d, from its end, is\n%q, not\n%q", by,
					opts.Predicate.Label, opts.Predicate.Limit, back, want)
			}
		}
	})
}

// TestSortedListErrors is about what a list cannot be sorted by, tokens of other lists, and a state
// that is gone.
func TestSortedListErrors(t *testing.T) {
	r := indexedPods(t, memory(t))
	declare(t, r, "created", "label:app")
	for i := range 5 {
		p := pod(numbered(i))
		p.Labels = map[string]string{"app": "a"}
		create(t, r, p)
	}
	built(t, r)
	list := func(by Sort, opts apistorage.ListOptions) error {
		opts.Recursive = true
		return r.GetList(WithSort(t.Context(), &by), "/pods", opts, &example.PodList{})
	}
	opts := selecting(t, "", "")
	opts.Predicate.Limit = 2
	_, _, after := sortedBy(t, r, Sort{By: "created"}, opts)
	plain := listBy(t, r, opts)
	for name, by := range map[string]Sort{"no index": {By: "label:other"}, "nothing": {}} {
		if err := list(by, opts); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	opts.Predicate.Continue = after
	for name, by := range map[string]Sort{"another index": {By: "label:app"},
		"another order": {By: "created", Descending: true}} {
		if err := list(by, opts); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, token := range []string{plain.Continue, "x", "e30", after[1:]} {
		opts.Predicate.Continue = token
		if err := list(Sort{By: "created"}, opts); !apierrors.IsBadRequest(err) {
			t.Errorf("the token %q: %v", token, err)
		}
	}
	opts.Predicate.Continue = after
	if err := r.GetList(t.Context(), "/pods", apistorage.ListOptions{Recursive: true,
		Predicate: opts.Predicate}, &example.PodList{}); err == nil {
		t.Error("a list in the order of keys takes the token of a sorted one")
	}
	create(t, r, pod("late"))
	if err := r.mvcc.Compact(t.Context(), head(t, r)); err != nil {
		t.Fatal(err)
	}
	if err := list(Sort{By: "created"}, opts); !apierrors.IsResourceExpired(err) {
		t.Errorf("after a compaction: %v", err)
	}
	if err := list(Sort{By: "created"}, selecting(t, "", "")); err != nil {
		t.Errorf("begun again: %v", err)
	}
	store(t, r, "damaged", []byte("{"))
	whole := &example.PodList{}
	want := r.GetList(t.Context(), "/pods", selecting(t, "", ""), whole)
	for _, descending := range []bool{false, true} {
		if err := list(Sort{By: "created", Descending: descending}, selecting(t, "", "")); want == nil ||
			err == nil || err.Error() != want.Error() {
			t.Errorf("with an object that cannot be decoded: %v, and without sorting: %v", err, want)
		}
	}
	many := make([]contract.Mutation, 10_001)
	for i := range many {
		many[i] = contract.Mutation{Key: r.keys.all() + contract.Key("ns/"+numbered(i)+"-x"), Value: []byte("{")}
	}
	if _, errs := r.mvcc.ApplyAll(t.Context(), many); errors.Join(errs...) != nil {
		t.Fatal(errors.Join(errs...))
	}
	if err := list(Sort{By: "created"}, opts); !apierrors.IsServiceUnavailable(err) ||
		!strings.Contains(err.Error(), "rowkeeper indexes rebuild") {
		t.Errorf("of an index that knows little: %v", err)
	}
	// One object alone is not sorted.
	if err := r.GetList(WithSort(t.Context(), &Sort{By: "none"}), podKey("late"),
		apistorage.ListOptions{Predicate: apistorage.Everything}, &example.PodList{}); err != nil {
		t.Errorf("a list of one object: %v", err)
	}
}

func head(t testing.TB, r *objectStore) contract.Revision {
	t.Helper()
	st, err := r.mvcc.State(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return st.Head.Revision
}
