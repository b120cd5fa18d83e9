package storage

import (
	"context"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// pastOf asks for a history.
func pastOf(t *testing.T, s apistorage.Interface, h History) (HistoryPage, []example.Pod, error) {
	t.Helper()
	if h.Limit == 0 {
		h.Limit = 100
	}
	h.Resource = "pods"
	var page HistoryPage
	h.Tell = func(p HistoryPage) { page = p }
	list := &example.PodList{}
	err := s.GetList(WithHistory(t.Context(), &h), "/pods/ns", apistorage.ListOptions{
		Predicate: apistorage.Everything, Recursive: true}, list)
	return page, list.Items, err
}

// TestHistory: the list has the states of an object, and tells what they are.
func TestHistory(t *testing.T) {
	store := memory(t)
	r := pods(t, store)
	create(t, r, pod("a"))
	create(t, r, pod("ab"))
	for _, value := range []string{"1", "2"} {
		if _, err := label(t.Context(), r, "a", value); err != nil {
			t.Fatal(err)
		}
	}
	page, items, err := pastOf(t, r, History{Name: "a"})
	if err != nil || len(page.Changes) != 3 || len(items) != 3 || page.Oldest != 1 {
		t.Fatalf("the history is %+v, %v", page, err)
	}
	for i, want := range []string{"2", "1", ""} {
		c := page.Changes[i]
		if got := items[c.State.Item]; got.Labels["value"] != want || got.Name != "a" ||
			c.Created != (i == 2) || c.Name != "a" || c.Namespace != "ns" ||
			c.Before != nil && items[c.Before.Item].Labels["value"] == want {
			t.Errorf("change %d is %+v of %+v", i, c, got)
		}
	}
	page, _, err = pastOf(t, r, History{Limit: 2})
	if err != nil || len(page.Changes) != 2 || page.Continue == "" || page.Until != 5 {
		t.Errorf("the changes of all are %+v, %v", page, err)
	}
	page, _, err = pastOf(t, r, History{Limit: 2, Continue: page.Continue})
	if err != nil || len(page.Changes) != 2 || page.Continue != "" || page.Changes[0].Name != "ab" {
		t.Errorf("the other changes are %+v, %v", page, err)
	}
	page, items, err = pastOf(t, r, History{Name: "a", At: &Moment{Revision: 3}})
	if err != nil || len(page.Changes) != 1 || items[0].ResourceVersion != "2" {
		t.Errorf("at revision 3 it is %+v, %v", page, err)
	}
	page, _, err = pastOf(t, r, History{Since: &Moment{Ago: time.Hour}, Until: &Moment{Ago: 0}})
	if err != nil || len(page.Changes) != 4 || page.Since != 1 {
		t.Errorf("the changes of the last hour are %+v, %v", page, err)
	}
	if _, _, err = pastOf(t, r, History{Continue: "x"}); !apierrors.IsBadRequest(err) {
		t.Errorf("a wrong token is answered by %v", err)
	}
	if _, _, err = pastOf(t, r, History{Name: "..", At: &Moment{Revision: 3}}); err == nil {
		t.Error("a name that is a way up is answered")
	}
	for _, h := range []History{{Until: &Moment{Revision: 6}}, {Since: &Moment{Revision: 6}},
		{Name: "a", At: &Moment{Revision: 6}}} {
		if _, _, err = pastOf(t, r, h); !apistorage.IsTooLargeResourceVersion(err) {
			t.Errorf("a moment above the head is answered by %v", err)
		}
	}
	page, _, err = pastOf(t, r, History{Since: &Moment{Revision: 3}})
	if err != nil || page.Since != 3 {
		t.Errorf("the changes since 3 are %+v, %v", page, err)
	}
	page, _, err = pastOf(t, r, History{Name: "a", Limit: 1})
	if err != nil || page.Continue == "" {
		t.Fatalf("the first change is %+v, %v", page, err)
	}
	if _, _, err = pastOf(t, r, History{Name: "ab", Continue: page.Continue}); !apierrors.IsBadRequest(err) {
		t.Errorf("the token of another object is answered by %v", err)
	}
	if err := store.Compact(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	page, _, err = pastOf(t, r, History{Since: &Moment{Revision: 3}})
	if err != nil || page.Since != 0 || page.Oldest != 6 {
		t.Errorf("after a compaction, the changes since 3 are %+v, %v", page, err)
	}
	if _, _, err = pastOf(t, r, History{Until: &Moment{Revision: 4}}); !apierrors.IsResourceExpired(err) {
		t.Errorf("an end that was compacted is answered by %v", err)
	}
	_, _, err = pastOf(t, r, History{Name: "a", At: &Moment{Revision: 1}})
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("a state that was compacted is answered by %v", err)
	}
}

// forgetting is a codec that does not know objects with a word in them any more.
type forgetting struct {
	runtime.Codec
	word *string
}

func (f forgetting) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object,
	*schema.GroupVersionKind, error) {
	if *f.word != "" && strings.Contains(string(data), *f.word) {
		return nil, nil, runtime.NewNotRegisteredErrForType("test", nil)
	}
	return f.Codec.Decode(data, defaults, into)
}

// losing is a transformer that cannot open what has a word in it.
type losing struct {
	value.Transformer
	word *string
}

func (l losing) TransformFromStorage(ctx context.Context, data []byte, c value.Context) ([]byte, bool,
	error) {
	if *l.word != "" && strings.Contains(string(data), *l.word) {
		return nil, false, contract.ErrClosed
	}
	return l.Transformer.TransformFromStorage(ctx, data, c)
}

// TestUnreadableHistory: states that cannot be decoded are told as they are stored, and those that
// cannot be decrypted are told to be there.
func TestUnreadableHistory(t *testing.T) {
	var forgotten, lost string
	config := podConfig()
	config.Codec = forgetting{config.Codec, &forgotten}
	config.Transformer = losing{identity.NewEncryptCheckTransformer(), &lost}
	r := open(t, memory(t), config)
	create(t, r, pod("a"))
	for _, value := range []string{"first", "second", "third"} {
		if _, err := label(t.Context(), r, "a", value); err != nil {
			t.Fatal(err)
		}
	}
	forgotten, lost = "first", "second"
	page, items, err := pastOf(t, r, History{Name: "a"})
	if err != nil || len(page.Changes) != 4 || len(items) != 2 {
		t.Fatalf("the history is %+v, %v", page, err)
	}
	first, second := page.Changes[2].State, page.Changes[1].State
	if first.Item != -1 || !strings.Contains(string(first.Stored), `"first"`) || first.Err == nil {
		t.Errorf("what cannot be decoded is %+v", first)
	}
	if second.Item != -1 || second.Stored != nil || second.Err == nil {
		t.Errorf("what cannot be decrypted is %+v", second)
	}
	if page.Changes[1].Before != first || items[page.Changes[0].State.Item].Labels["value"] != "third" {
		t.Errorf("the states do not belong together: %+v", page.Changes)
	}
}
