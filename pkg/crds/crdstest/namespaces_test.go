package crdstest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/rowkeeper/rowkeeper/pkg/crds"
	"github.com/rowkeeper/rowkeeper/pkg/crds/crdstest"
	"github.com/rowkeeper/rowkeeper/pkg/crds/internal/builtin"
	"github.com/rowkeeper/rowkeeper/pkg/definitions"
	"github.com/rowkeeper/rowkeeper/pkg/example/exampletest"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// blindness hides a group from all who ask a server which resources it has, as if the worker that
// fills discovery had not come to it yet.
type blindness struct {
	group string
	over  atomic.Bool
}

// extension is crds.Prepare with a server that is blind.
func (b *blindness) extension(c *genericapiserver.RecommendedConfig, e definitions.Options,
) (definitions.Extend, error) {
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		return build(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if b.over.Load() || r.URL.Path != "/apis" {
				handler.ServeHTTP(w, r)
				return
			}
			r = r.Clone(r.Context())
			r.Header.Set("Accept",
				"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, r)
			var groups apidiscovery.APIGroupDiscoveryList
			if err := json.Unmarshal(answer.Body.Bytes(), &groups); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			groups.Items = slices.DeleteFunc(groups.Items,
				func(g apidiscovery.APIGroupDiscovery) bool {
					return g.Name == b.group
				})
			body, err := json.Marshal(groups)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
			w.Write(body) //nolint:errcheck // whoever asked has gone
		}), c)
	}
	return crds.Prepare(c, e)
}

func newTeam(t *testing.T, s *testkit.Server) (*corev1.Namespace, error) {
	return kubernetes.NewForConfigOrDie(s.Config).CoreV1().Namespaces().
		Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "team-"}},
			metav1.CreateOptions{})
}

// An object that discovery does not know of yet keeps its namespace, and goes with it.
func TestNamespaceOfUndiscoveredObject(t *testing.T) {
	b := &blindness{group: "example.com"}
	s := exampletest.Start(t, testkit.Options{Definitions: b.extension})
	define(t, s, "example.com")
	n, err := newTeam(t, s)
	if err != nil {
		t.Fatal(err)
	}
	objects := dynamic.NewForConfigOrDie(s.Config).Resource(gadgets).Namespace(n.Name)
	if _, err := objects.Create(t.Context(), gadget("one"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	namespaces := kubernetes.NewForConfigOrDie(s.Config).CoreV1().Namespaces()
	if err := namespaces.Delete(t.Context(), n.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace says what is left", func(ctx context.Context) (bool, error) {
		n, err := namespaces.Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NamespaceCondition) bool {
			return c.Type == corev1.NamespaceContentRemaining && c.Status == corev1.ConditionTrue &&
				strings.Contains(c.Message, "gadgets.example.com has resource instances, and is "+
					"not discovered here")
		}), nil
	})
	if _, err := objects.Get(t.Context(), "one", metav1.GetOptions{}); err != nil {
		t.Errorf("the object: %v", err)
	}
	b.over.Store(true)
	goneWith(t, s, n.Name, objects)
}

// gone waits until a namespace is gone.
func gone(t *testing.T, s *testkit.Server, namespace string) {
	t.Helper()
	eventually(t, "the namespace is gone", func(ctx context.Context) (bool, error) {
		_, err := kubernetes.NewForConfigOrDie(s.Config).CoreV1().Namespaces().Get(ctx, namespace,
			metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

// goneWith waits until a namespace is gone, and its object one with it.
func goneWith(t *testing.T, s *testkit.Server, namespace string,
	objects dynamic.ResourceInterface) {
	t.Helper()
	gone(t, s, namespace)
	if _, err := objects.Get(t.Context(), "one", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the object without its namespace: %v", err)
	}
}

// A server that has not discovered a group does not let a namespace go either, while another one
// waits for an object with a finalizer.
func TestNamespaceOfObjectUndiscoveredByReplica(t *testing.T) {
	b := &blindness{group: "example.com"}
	o := testkit.Options{Prefix: "/shared", Database: testkit.Database{URL: "sqlite://" +
		t.TempDir() + "/state.db", Driver: sqlite.Driver}}
	one := crdstest.Start(t, o)
	o.Definitions = b.extension
	blind := exampletest.Start(t, o)
	define(t, one, "example.com")
	n, err := newTeam(t, one)
	if err != nil {
		t.Fatal(err)
	}
	objects := dynamic.NewForConfigOrDie(one.Config).Resource(gadgets).Namespace(n.Name)
	held := gadget("one")
	held.SetFinalizers([]string{"example.com/wait"})
	eventually(t, "the first server knows the namespace and the definition",
		func(ctx context.Context) (bool, error) {
			_, err := objects.Create(ctx, held, metav1.CreateOptions{})
			return err == nil, nil
		})
	namespaces := kubernetes.NewForConfigOrDie(blind.Config).CoreV1().Namespaces()
	if err := namespaces.Delete(t.Context(), n.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the blind server has looked at the namespace after it could let it go",
		func(ctx context.Context) (bool, error) {
			n, err := namespaces.Get(ctx, n.Name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NamespaceCondition) bool {
				return strings.Contains(c.Message,
					"gadgets.example.com has resource instances, and is not discovered here")
			}), nil
		})
	if _, err := objects.Patch(t.Context(), "one", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	goneWith(t, one, n.Name, objects)
}

// With many definitions at once, discovery is late by itself: each has an object as soon as it is
// established, whose namespace is deleted at once.
func TestNamespacesOfManyDefinitions(t *testing.T) {
	const many = 60
	s := crdstest.Start(t, testkit.Options{})
	config := rest.CopyConfig(s.Config)
	config.QPS = -1 // the client must not wait until discovery has caught up
	definitions := apiextensions.NewForConfigOrDie(config).ApiextensionsV1().CustomResourceDefinitions()
	namespaces := kubernetes.NewForConfigOrDie(config).CoreV1().Namespaces()
	client := dynamic.NewForConfigOrDie(config)
	objects := func(d *apiextensionsv1.CustomResourceDefinition,
		namespace string) dynamic.ResourceInterface {
		return client.Resource(schema.GroupVersionResource{
			Group: d.Spec.Group, Version: "v1", Resource: "gadgets",
		}).Namespace(namespace)
	}
	var all errgroup.Group
	for i := range many {
		all.Go(func() error {
			_, err := definitions.Create(t.Context(), definition(fmt.Sprintf("g%d.example.com", i)),
				metav1.CreateOptions{})
			return err
		})
	}
	begun := map[string]bool{}
	use := func(d *apiextensionsv1.CustomResourceDefinition) {
		begun[d.Name] = true
		all.Go(func() error {
			n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: strings.ReplaceAll(d.Spec.Group, ".", "-")}}
			if _, err := namespaces.Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
				return err
			}
			one := gadget("one")
			one.SetAPIVersion(d.Spec.Group + "/v1")
			if _, err := objects(d, n.Name).Create(t.Context(), one,
				metav1.CreateOptions{}); err != nil {
				return err
			}
			return namespaces.Delete(t.Context(), n.Name, metav1.DeleteOptions{})
		})
	}
	eventually(t, "all definitions are established", func(ctx context.Context) (bool, error) {
		list, err := definitions.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, d := range list.Items {
			if !begun[d.Name] && apihelpers.IsCRDConditionTrue(&d, apiextensionsv1.Established) {
				use(&d)
			}
		}
		return len(begun) == many, nil
	})
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespaces are gone", func(ctx context.Context) (bool, error) {
		list, err := namespaces.List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == len(builtin.SystemNamespaces), err
	})
	for i := range many {
		d := definition(fmt.Sprintf("g%d.example.com", i))
		left, err := objects(d, metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(left.Items) > 0 {
			t.Errorf("objects of %s without their namespace: %v, %v", d.Name, left, err)
		}
	}
}

// A webhook that cannot convert the objects of a resource, since it refuses, or never answers,
// keeps those namespaces that have such objects, which say so. Others go at once.
func TestNamespacesBesideDeadWebhook(t *testing.T) {
	for name, hangs := range map[string]bool{"refuses": false, "hangs": true} {
		t.Run(name, func(t *testing.T) {
			s := crdstest.Start(t, testkit.Options{})
			leave := make(chan struct{})
			hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter,
				r *http.Request) {
				if hangs {
					<-leave
				}
				http.Error(w, "I do not convert", http.StatusInternalServerError)
			}))
			defer hook.Close()
			defer close(leave)
			define(t, s, "example.com")
			with, err := newTeam(t, s)
			if err != nil {
				t.Fatal(err)
			}
			objects := dynamic.NewForConfigOrDie(s.Config).Resource(gadgets).Namespace(with.Name)
			if _, err := objects.Create(t.Context(), gadget("one"),
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			// The second version, in which objects are listed and stored from now on, needs the
			// webhook.
			convert := func(c *apiextensionsv1.CustomResourceConversion) {
				t.Helper()
				client := apiextensions.NewForConfigOrDie(s.Config).ApiextensionsV1().
					CustomResourceDefinitions()
				err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
					d, err := client.Get(t.Context(), "gadgets.example.com", metav1.GetOptions{})
					if err != nil {
						return err
					}
					d.Spec.Versions = append(d.Spec.Versions[:1], *d.Spec.Versions[0].DeepCopy())
					d.Spec.Versions[0].Storage = false
					d.Spec.Versions[1].Name, d.Spec.Versions[1].Storage = "v2", true
					d.Spec.Conversion = c
					_, err = client.Update(t.Context(), d, metav1.UpdateOptions{})
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			convert(&apiextensionsv1.CustomResourceConversion{
				Strategy: apiextensionsv1.WebhookConverter,
				Webhook: &apiextensionsv1.WebhookConversion{
					ConversionReviewVersions: []string{"v1"},
					ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &hook.URL,
						CABundle: certificateOf(hook)}}})
			second := gadgets
			second.Version = "v2"
			eventually(t, "the webhook is asked", func(ctx context.Context) (bool, error) {
				ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
				defer cancel()
				_, err := dynamic.NewForConfigOrDie(s.Config).Resource(second).
					Namespace(with.Name).Get(ctx, "one", metav1.GetOptions{})
				return err != nil && !apierrors.IsNotFound(err), nil
			})
			namespaces := kubernetes.NewForConfigOrDie(s.Config).CoreV1().Namespaces()
			remove := func(name string) {
				t.Helper()
				if err := namespaces.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			remove(with.Name)
			for range 3 {
				without, err := newTeam(t, s)
				if err != nil {
					t.Fatal(err)
				}
				remove(without.Name)
				gone(t, s, without.Name)
			}
			eventually(t, "the namespace says what is left", func(ctx context.Context) (bool, error) {
				n, err := namespaces.Get(ctx, with.Name, metav1.GetOptions{})
				if err != nil {
					return false, err
				}
				return slices.ContainsFunc(n.Status.Conditions,
					func(c corev1.NamespaceCondition) bool {
						return c.Status == corev1.ConditionTrue &&
							strings.Contains(c.Message, "gadgets.example.com")
					}), nil
			})
			convert(&apiextensionsv1.CustomResourceConversion{
				Strategy: apiextensionsv1.NoneConverter})
			goneWith(t, s, with.Name, objects)
		})
	}
}
