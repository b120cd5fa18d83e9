package collectortest

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
)

// Collector says what is known of a collector.
type Collector struct {
	// Upstream waits for ever in some cases.
	Upstream bool
	// LargeOwners are in no graph, so that nobody is told of those in another namespace.
	LargeOwners bool
}

// Run runs all cases on a server.
func Run(t *testing.T, config *rest.Config, collector Collector) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	s := &server{
		definitions: apiextensions.NewForConfigOrDie(config),
		objects:     dynamic.NewForConfigOrDie(config), client: kubernetes.NewForConfigOrDie(config),
	}
	for _, k := range []kind{gadget, globe} {
		s.define(t, k)
	}
	for _, alone := range []bool{false, true} {
		t.Run("cases", func(t *testing.T) {
			for _, c := range cases {
				if c.alone == alone {
					t.Run(c.name, func(t *testing.T) {
						t.Parallel()
						s.run(t, &c, collector)
					})
				}
			}
		})
	}
}

type server struct {
	definitions apiextensions.Interface
	objects     dynamic.Interface
	client      kubernetes.Interface
}

func (s *server) define(t *testing.T, k kind) {
	t.Helper()
	scope := apiextensionsv1.NamespaceScoped
	if k.cluster {
		scope = apiextensionsv1.ClusterScoped
	}
	open := &apiextensionsv1.CustomResourceValidation{
		OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}
	d := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: k.resource + "." + k.group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: k.group, Scope: scope,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: k.resource, Kind: k.name},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				{Name: "v1", Served: true, Storage: true, Schema: open},
				{Name: "v1beta1", Served: true, Schema: open},
			}},
	}
	definitions := s.definitions.ApiextensionsV1().CustomResourceDefinitions()
	if _, err := definitions.Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the definition is established", func(ctx context.Context) (bool, string) {
		d, err := definitions.Get(ctx, d.Name, metav1.GetOptions{})
		return err == nil && apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established),
			fmt.Sprint(err)
	})
}

// eventually waits for a state, which it asks for since other programs make it.
func eventually(t *testing.T, what string, is func(context.Context) (bool, string)) {
	t.Helper()
	state := ""
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, patience, true,
		func(ctx context.Context) (done bool, _ error) {
			done, state = is(ctx)
			return done, nil
		})
	if err != nil {
		t.Fatalf("%s: %v; it is so: %s", what, err, state)
	}
}

// fixture is a case that runs.
type fixture struct {
	*server
	*testing.T
	namespace, elsewhere string
	made                 map[string]object
	uids                 map[string]types.UID
}

func (s *server) run(t *testing.T, c *testCase, collector Collector) {
	suffix := strings.ToLower(rand.Text()[:8])
	f := &fixture{server: s, T: t, namespace: "gc-" + suffix, elsewhere: "gc-else-" + suffix,
		made: map[string]object{}, uids: map[string]types.UID{}}
	for _, name := range []string{f.namespace, f.elsewhere} {
		_, err := s.client.CoreV1().Namespaces().Create(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	f.seen() // that all kinds are watched
	later := map[string][]owner{}
	for _, o := range c.objects {
		o.owners = slices.DeleteFunc(slices.Clone(o.owners), func(ref owner) bool {
			comes := slices.ContainsFunc(c.objects, func(o object) bool { return o.id == ref.of })
			if f.uids[ref.of] == "" && comes {
				later[o.id] = append(later[o.id], ref)
				return true
			}
			return false
		})
		if slices.Contains(c.reported, o.id) {
			f.seen() // an owner that is elsewhere is reported only if the collector knows it
		}
		f.create(o)
	}
	for id, refs := range later {
		f.change(id, func(u *unstructured.Unstructured) {
			for _, ref := range refs {
				u.SetOwnerReferences(append(u.GetOwnerReferences(), f.reference(ref)))
			}
		})
	}
	f.seen()
	for _, step := range c.steps {
		step.do(f)
		want := step.want
		if collector.Upstream && c.stuck != nil {
			want = c.stuck
		}
		f.await(want)
		// The rest stays when everything until now has been looked at.
		f.seen()
		f.await(want)
	}
	for _, id := range c.reported {
		if !collector.LargeOwners || !c.elsewhere {
			f.reported(id)
		}
	}
}

func (f *fixture) in(o object) dynamic.ResourceInterface {
	r := f.objects.Resource(schema.GroupVersionResource{Group: o.kind.group,
		Version: o.kind.version, Resource: o.kind.resource})
	if o.kind.cluster {
		return r
	}
	return r.Namespace(f.namespaceOf(o))
}

func (f *fixture) namespaceOf(o object) string {
	switch {
	case o.kind.cluster:
		return ""
	case o.elsewhere:
		return f.elsewhere
	}
	return f.namespace
}

// name is different in each case, since objects without a namespace are those of all.
func (f *fixture) name(id string) string { return f.namespace + "-" + id }

func (f *fixture) reference(ref owner) metav1.OwnerReference {
	k := ref.kind
	r := metav1.OwnerReference{Name: f.name(ref.of), UID: uuid.NewUUID()}
	if o, ok := f.made[ref.of]; ok {
		k, r.UID = o.kind, f.uids[ref.of]
	}
	if ref.block {
		r.BlockOwnerDeletion = &ref.block
	}
	if ref.otherUID {
		r.UID = uuid.NewUUID()
	}
	if ref.otherName {
		r.Name += "-other"
	}
	if ref.otherKind {
		k = configMap
	}
	if ref.version != "" {
		k.version = ref.version
	}
	r.APIVersion = schema.GroupVersion{Group: k.group, Version: k.version}.String()
	r.Kind = k.name
	return r
}

func (f *fixture) create(o object) {
	f.Helper()
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(schema.GroupVersion{Group: o.kind.group, Version: o.kind.version}.String())
	u.SetKind(o.kind.name)
	u.SetName(f.name(o.id))
	u.SetFinalizers(o.finalizers)
	var owners []metav1.OwnerReference
	for _, ref := range o.owners {
		owners = append(owners, f.reference(ref))
	}
	u.SetOwnerReferences(owners)
	created, err := f.in(o).Create(f.Context(), u, metav1.CreateOptions{})
	if err != nil {
		f.Fatal(err)
	}
	f.made[o.id], f.uids[o.id] = o, created.GetUID()
}

func (f *fixture) change(id string, change func(*unstructured.Unstructured)) {
	f.Helper()
	o := f.made[id]
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		u, err := f.in(o).Get(f.Context(), f.name(id), metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(u)
		_, err = f.in(o).Update(f.Context(), u, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		f.Fatal(err)
	}
}

// release removes the finalizer hold.
func (f *fixture) release(id string) {
	f.Helper()
	f.change(id, func(u *unstructured.Unstructured) {
		u.SetFinalizers(slices.DeleteFunc(u.GetFinalizers(), func(s string) bool {
			return s == hold
		}))
	})
}

// unblock removes blockOwnerDeletion.
func (f *fixture) unblock(id string) {
	f.Helper()
	f.change(id, func(u *unstructured.Unstructured) {
		owners := u.GetOwnerReferences()
		for i := range owners {
			owners[i].BlockOwnerDeletion = nil
		}
		u.SetOwnerReferences(owners)
	})
}

func (f *fixture) delete(id string, policy metav1.DeletionPropagation) {
	f.Helper()
	var o metav1.DeleteOptions
	if policy != "" {
		o.PropagationPolicy = &policy
	}
	if err := f.in(f.made[id]).Delete(f.Context(), f.name(id), o); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) define(k kind) { f.server.define(f.T, k) }

func (f *fixture) undefine(k kind) {
	f.Helper()
	err := f.definitions.ApiextensionsV1().CustomResourceDefinitions().
		Delete(f.Context(), k.resource+"."+k.group, metav1.DeleteOptions{})
	if err != nil {
		f.Fatal(err)
	}
}

// state tells how an object is.
func (f *fixture) state(ctx context.Context, id string) string {
	o := f.made[id]
	u, err := f.in(o).Get(ctx, f.name(id), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return gone
	}
	if err != nil {
		return err.Error()
	}
	state := there
	if u.GetUID() != f.uids[id] {
		return "another one"
	}
	if u.GetDeletionTimestamp() != nil {
		state = deleting
	}
	var owners []string
	for _, ref := range u.GetOwnerReferences() {
		owners = append(owners, strings.TrimPrefix(ref.Name, f.namespace+"-"))
	}
	if len(owners) > 0 {
		state += " of " + strings.Join(owners, ",")
	}
	if u.GetDeletionTimestamp() != nil && len(u.GetFinalizers()) > 0 {
		state += " " + strings.ReplaceAll(fmt.Sprint(u.GetFinalizers()), hold, "hold")
	}
	return state
}

// await waits until the objects are so.
func (f *fixture) await(want map[string]string) {
	f.Helper()
	eventually(f.T, fmt.Sprintf("want %v", want), func(ctx context.Context) (bool, string) {
		got := map[string]string{}
		for id := range want {
			got[id] = f.state(ctx, id)
		}
		return maps.Equal(got, want), fmt.Sprint(got)
	})
}

// seen waits until the collector has seen all that was done before: until it has deleted an object
// of each kind whose owner never was. Events of a kind are seen in their order.
func (f *fixture) seen() {
	f.Helper()
	want := map[string]string{}
	for _, k := range []kind{configMap, gadget, globe, visitor} {
		o := object{id: "canary-" + k.resource, kind: k,
			owners: []owner{{of: "nobody", kind: configMap}}}
		if k == globe {
			o.owners[0].kind = globe
		}
		if k == visitor {
			if _, ok := f.made["v"]; !ok {
				continue
			}
			if _, err := f.in(o).List(f.Context(), metav1.ListOptions{}); apierrors.IsNotFound(err) {
				continue // it has gone again
			}
		}
		f.create(o)
		want[o.id] = gone
	}
	f.await(want)
}

// reported waits for the event about an object.
func (f *fixture) reported(id string) {
	f.Helper()
	namespace := f.namespaceOf(f.made[id])
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	eventually(f.T, "an event about "+id, func(ctx context.Context) (bool, string) {
		events, err := f.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
			FieldSelector: "reason=OwnerRefInvalidNamespace,involvedObject.uid=" + string(f.uids[id])})
		if err != nil {
			return false, err.Error()
		}
		return len(events.Items) > 0, "there is none"
	})
}
