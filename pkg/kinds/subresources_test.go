package kinds_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/discovery"

	"github.com/rowkeeper/rowkeeper/pkg/kinds"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// secure is a subresource of bookmarks: whoever creates it makes the bookmark lead to the same page
// by https.
type secure struct{ store *genericregistry.Store }

func (*secure) New() runtime.Object { return &Bookmark{} }

func (*secure) Destroy() {}

func (s *secure) Create(ctx context.Context, name string, _ runtime.Object,
	validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (runtime.Object, error) {
	change := func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		b := old.DeepCopyObject().(*Bookmark)
		page, ok := strings.CutPrefix(b.Spec.URL, "http://")
		if !ok {
			return nil, apierrors.NewBadRequest(b.Spec.URL + " cannot be made secure")
		}
		b.Spec.URL = "https://" + page
		return b, validate(ctx, b)
	}
	changed, _, err := s.store.Update(ctx, name, rest.DefaultUpdatedObjectInfo(nil, change), nil,
		rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{DryRun: o.DryRun})
	return changed, err
}

// page is a subresource that answers in its own way: it tells the address as text.
type page struct{ store *genericregistry.Store }

func (*page) New() runtime.Object { return &Bookmark{} }

func (*page) Destroy() {}

func (*page) ConnectMethods() []string { return []string{http.MethodGet} }

func (*page) NewConnectOptions() (runtime.Object, bool, string) { return nil, false, "" }

func (p *page) Connect(ctx context.Context, name string, _ runtime.Object,
	_ rest.Responder) (http.Handler, error) {
	obj, err := p.store.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, obj.(*Bookmark).Spec.URL)
	}), nil
}

// TestSubresources: a kind's own subresources work on its registry, in every version.
func TestSubresources(t *testing.T) {
	group := kinds.Group{Name: "example.com", Versions: []string{"v1", "v1alpha1"},
		Kinds: []kinds.Definition{kinds.Define(kinds.Kind[Bookmark]{
			Versions: []kinds.Version[Bookmark]{kinds.Converted("v1alpha1",
				func(in *BookmarkV1alpha1, out *Bookmark) error {
					out.Spec, out.Status = in.Rest, in.Status
					out.Spec.URL = in.Address
					return nil
				},
				func(in *Bookmark, out *BookmarkV1alpha1) error {
					out.Address, out.Rest, out.Status = in.Spec.URL, in.Spec, in.Status
					out.Rest.URL = ""
					return nil
				},
			)},
			Subresources: map[string]func(*genericregistry.Store) rest.Storage{
				"secure": func(s *genericregistry.Store) rest.Storage { return &secure{s} },
				"page":   func(s *genericregistry.Store) rest.Storage { return &page{s} },
			},
		})},
	}
	api, err := kinds.New(group)
	if err != nil {
		t.Fatal(err)
	}
	s := testkit.Start(t, testkit.API{Scheme: api.Scheme, Codecs: api.Codecs,
		NewConfig: api.NewConfig, New: api.New}, testkit.Options{Database: testkit.Memory})
	of := discovery.NewDiscoveryClientForConfigOrDie(s.Config)
	for _, version := range []string{"v1", "v1alpha1"} {
		client := bookmarks(s, version)
		object := bookmark(version, map[string]any{"url": "http://go.dev/doc"})
		if _, err := bookmarks(s, "v1").Create(t.Context(), object,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		object.SetAPIVersion("example.com/" + version)
		if version == "v1alpha1" {
			object.Object["address"] = ""
			delete(object.Object, "spec")
		}
		dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
		if _, err := client.Create(t.Context(), object, dry, "secure"); err != nil {
			t.Errorf("%s, a dry run: %v", version, err)
		}
		changed, err := client.Create(t.Context(), object, metav1.CreateOptions{}, "secure")
		if err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		if got := changed.GetAPIVersion(); got != "example.com/"+version ||
			changed.GetGeneration() != 2 {
			t.Errorf("%s: the answer is %v", version, changed.Object)
		}
		if _, err := client.Create(t.Context(), object, metav1.CreateOptions{},
			"secure"); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: again: %v", version, err)
		}
		text, err := of.RESTClient().Get().AbsPath("/apis/example.com", version,
			"namespaces/default/bookmarks", version, "page").DoRaw(t.Context())
		if err != nil || string(text) != "https://go.dev/doc" {
			t.Errorf("%s: the page is %s, %v", version, text, err)
		}
	}
	list, err := of.ServerResourcesForGroupVersion("example.com/v1alpha1")
	if err != nil {
		t.Fatal(err)
	}
	verbs := map[string]string{}
	for _, r := range list.APIResources {
		verbs[r.Name] = r.Verbs.String()
	}
	if verbs["bookmarks/secure"] != "[create]" || verbs["bookmarks/page"] != "[get]" {
		t.Errorf("the resources are %v", verbs)
	}
}

// TestSubresourceThatIsNone: a server whose author forgot something does not begin.
func TestSubresourceThatIsNone(t *testing.T) {
	api, err := kinds.New(kinds.Group{Name: "example.com", Versions: []string{"v1"},
		Kinds: []kinds.Definition{kinds.Define(kinds.Kind[Bookmark]{
			Subresources: map[string]func(*genericregistry.Store) rest.Storage{
				"secure": func(*genericregistry.Store) rest.Storage { return nil },
			},
		})}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = testkit.Launch(t.Context(), testkit.API{Scheme: api.Scheme, Codecs: api.Codecs,
		NewConfig: api.NewConfig, New: api.New}, testkit.Options{Database: testkit.Memory})
	if err == nil || !strings.Contains(err.Error(), "no subresource secure") {
		t.Errorf("it begins: %v", err)
	}
}
