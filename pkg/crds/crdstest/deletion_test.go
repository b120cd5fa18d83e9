package crdstest_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/pkg/crds"
	"github.com/rowkeeper/rowkeeper/pkg/crds/crdstest"
	"github.com/rowkeeper/rowkeeper/pkg/definitions"
	"github.com/rowkeeper/rowkeeper/pkg/example/exampletest"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/storage"
)

// slowEstablishment keeps definitions from being Established until it is over: it holds what
// upstream's controller writes, and lets everything else pass. It tells when a creation of a gadget
// has arrived.
type slowEstablishment struct{ over, arrived chan struct{} }

func (e *slowEstablishment) extension(c *genericapiserver.RecommendedConfig, o definitions.Options,
) (definitions.Extend, error) {
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		return build(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/status") &&
				strings.Contains(r.URL.Path, "/customresourcedefinitions/") {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					http.Error(w, err.Error(), http.StatusBadRequest)
					return
				}
				o, _, err := apiextensionsserver.Codecs.UniversalDeserializer().Decode(body, nil, nil)
				if err != nil {
					http.Error(w, err.Error(), http.StatusBadRequest)
					return
				}
				d := o.(*apiextensionsv1.CustomResourceDefinition)
				if d.DeletionTimestamp == nil &&
					apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established) {
					select {
					case <-e.over:
					case <-r.Context().Done():
					}
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
			}
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/gadgets") {
				e.arrived <- struct{}{}
			}
			handler.ServeHTTP(w, r)
		}), c)
	}
	return crds.Prepare(c, o)
}

// accepted waits until the names of a definition are accepted.
func accepted(t *testing.T, s *testkit.Server, name string) {
	t.Helper()
	client := apiextensions.NewForConfigOrDie(s.Config).ApiextensionsV1().CustomResourceDefinitions()
	eventually(t, "the names are accepted", func(ctx context.Context) (bool, error) {
		d, err := client.Get(ctx, name, metav1.GetOptions{})
		return err == nil && apihelpers.IsCRDConditionTrue(d, apiextensionsv1.NamesAccepted), err
	})
}

// undefine deletes a definition and waits until it is gone.
func undefine(t *testing.T, s *testkit.Server, name string) {
	t.Helper()
	client := apiextensions.NewForConfigOrDie(s.Config).ApiextensionsV1().CustomResourceDefinitions()
	if err := client.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the definition is gone", func(ctx context.Context) (bool, error) {
		_, err := client.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

// sameCodec is taken for the codec of all objects of definitions.
type sameCodec struct{ runtime.Codec }

func (sameCodec) Identifier() runtime.Identifier { return "custom resources" }

// An object is created when its definition is Established, and no sooner. If the definition is
// deleted before that, the object is refused, and what a server that died may have left behind is
// deleted: the next definition of that name has no objects.
func TestDefinitionDeletedBeforeEstablished(t *testing.T) {
	e := &slowEstablishment{over: make(chan struct{}), arrived: make(chan struct{}, 2)}
	s := exampletest.Start(t, testkit.Options{Definitions: e.extension})
	client := apiextensions.NewForConfigOrDie(s.Config).ApiextensionsV1().CustomResourceDefinitions()
	objects := dynamic.NewForConfigOrDie(s.Config).Resource(gadgets).Namespace("default")
	begin := func(name string) (answer chan error) {
		if _, err := client.Create(t.Context(), definition("example.com"),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		accepted(t, s, "gadgets.example.com")
		// The first read waits until the names are accepted for the handler, too.
		eventually(t, "objects are served", func(ctx context.Context) (bool, error) {
			_, err := objects.List(ctx, metav1.ListOptions{})
			return err == nil, nil
		})
		answer = make(chan error, 1)
		go func() {
			_, err := objects.Create(t.Context(), gadget(name), metav1.CreateOptions{})
			answer <- err
		}()
		select {
		case <-e.arrived:
		case err := <-answer:
			t.Fatalf("the creation did not arrive: %v", err)
		}
		return answer
	}
	answer := begin("early")
	key, err := s.Store.FirstKey(t.Context(), "/registry/", "/registry0")
	if err != nil {
		t.Fatal(err)
	}
	left, _, err := s.Store.Resource(storage.ResourceConfig{
		Codec:          sameCodec{unstructured.UnstructuredJSONScheme},
		Prefix:         strings.Join(strings.SplitN(key, "/", 4)[:3], "/"),
		ResourcePrefix: "/example.com/gadgets", GroupResource: gadgets.GroupResource(),
		NewFunc: func() runtime.Object { return &unstructured.Unstructured{} }})
	if err != nil {
		t.Fatal(err)
	}
	o := gadget("left")
	o.SetNamespace("default")
	o.SetUID("left-behind")
	if err := left.Create(t.Context(), "/example.com/gadgets/default/left", o,
		&unstructured.Unstructured{}, 0); err != nil {
		t.Fatal(err)
	}
	undefine(t, s, "gadgets.example.com")
	if err := <-answer; err == nil {
		t.Error("an object was created before its definition was established")
	} else if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		t.Errorf("the object is refused with: %v", err)
	}

	answer = begin("late")
	select {
	case err := <-answer:
		t.Errorf("the creation did not wait: %v", err)
	default:
	}
	close(e.over)
	if err := <-answer; err != nil {
		t.Errorf("an object whose definition is established: %v", err)
	}
	list, err := objects.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range list.Items {
		if o.GetName() != "late" {
			t.Errorf("%s has survived the deletion of its definition", o.GetName())
		}
	}
}

// Objects are created as early as possible, by several clients, while their definition is deleted.
// None is there with the next definition.
func TestNoObjectSurvivesDefinition(t *testing.T) {
	const rounds, clients = 4, 3
	s := crdstest.Start(t, testkit.Options{})
	config := rest.CopyConfig(s.Config)
	config.QPS = -1
	client := apiextensions.NewForConfigOrDie(config).ApiextensionsV1().CustomResourceDefinitions()
	objects := dynamic.NewForConfigOrDie(config).Resource(gadgets).Namespace("default")
	large := definition("example.com")
	properties := map[string]apiextensionsv1.JSONSchemaProps{}
	for i := range 500 {
		properties[fmt.Sprint("field", i)] = apiextensionsv1.JSONSchemaProps{Type: "string",
			Description: strings.Repeat("Some words. ", 20)}
	}
	large.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties = properties
	for round := range rounds {
		if _, err := client.Create(t.Context(), large.DeepCopy(),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		created := make(chan string, 1000)
		stop := make(chan struct{})
		var running sync.WaitGroup
		for c := range clients {
			running.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					name := fmt.Sprintf("r%d-%d-%d", round, c, i)
					if _, err := objects.Create(t.Context(), gadget(name),
						metav1.CreateOptions{}); err == nil {
						select {
						case created <- name:
						default:
						}
					}
				}
			})
		}
		<-created
		undefine(t, s, large.Name)
		close(stop)
		running.Wait()
	}
	establish(t, s, large)
	list, err := objects.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range list.Items {
		t.Errorf("%s has survived the deletion of its definition", o.GetName())
	}
}

// A definition of more objects than a list may have is not deleted before its objects, and says
// why. The objects can still be deleted by pages.
func TestDeletionOfLargeKind(t *testing.T) {
	s := crdstest.Start(t, testkit.Options{Storage: func(o *options.StorageOptions) {
		o.WatchCacheSizes, o.MaxUnpagedList = []string{"gadgets.example.com#0"}, 2
	}})
	define(t, s, "example.com")
	client := apiextensions.NewForConfigOrDie(s.Config).ApiextensionsV1().CustomResourceDefinitions()
	objects := dynamic.NewForConfigOrDie(s.Config).Resource(gadgets).Namespace("default")
	for i := range 3 {
		if _, err := objects.Create(t.Context(), gadget(fmt.Sprint("g", i)),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const name = "gadgets.example.com"
	if err := client.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the definition says why it stays", func(ctx context.Context) (bool, error) {
		d, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		c := apihelpers.FindCRDCondition(d, apiextensionsv1.Terminating)
		return c != nil && strings.Contains(c.Message, "would have more than 2 gadgets"), nil
	})
	if err := objects.DeleteCollection(t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	// Upstream's finalizer tries again after a delay that grows up to 17 minutes, or, if its own
	// last write came between, when its informer resyncs. A change of the definition calls it.
	if _, err := client.Patch(t.Context(), name, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"example.com/objects":"deleted"}}}`),
		metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	eventually(t, "the definition is gone", func(ctx context.Context) (bool, error) {
		_, err := client.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}
