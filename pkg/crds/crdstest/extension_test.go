package crdstest_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	admissionreview "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/rowkeeper/rowkeeper/pkg/crds"
	"github.com/rowkeeper/rowkeeper/pkg/crds/crdstest"
	"github.com/rowkeeper/rowkeeper/pkg/definitions"
	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/exampletest"
	"github.com/rowkeeper/rowkeeper/pkg/kinds"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// vetoer is an author's admission plugin.
type vetoer struct{ *admission.Handler }

func (vetoer) Validate(_ context.Context, a admission.Attributes,
	_ admission.ObjectInterfaces) error {
	if a.GetName() == "vetoed" {
		return admission.NewForbidden(a, nil)
	}
	return nil
}

// An author's New may add admission plugins, and not take away those of the extension.
func TestAdmissionOfAuthor(t *testing.T) {
	mine := vetoer{admission.NewHandler(admission.Create)}
	api := exampletest.API
	var prepared admission.Interface
	api.New = func(c *genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer,
		error) {
		prepared = c.AdmissionControl
		c.AdmissionControl = admission.NewChainHandler(c.AdmissionControl, mine)
		return exampletest.API.New(c)
	}
	extension := func(c *genericapiserver.RecommendedConfig,
		e definitions.Options) (definitions.Extend, error) {
		extend, err := crds.Prepare(c, e)
		return func(s *genericapiserver.GenericAPIServer) (*genericapiserver.GenericAPIServer,
			error) {
			chained := c.AdmissionControl
			for _, replaced := range []admission.Interface{nil, mine,
				admission.NewChainHandler(mine)} {
				c.AdmissionControl = replaced
				if _, err := extend(s); err == nil || !strings.Contains(err.Error(),
					"AdmissionControl was replaced after it had been prepared") {
					t.Errorf("with %T in place of %T: %v", replaced, prepared, err)
				}
			}
			c.AdmissionControl = chained
			return extend(s)
		}, err
	}
	s := testkit.Start(t, api, testkit.Options{Definitions: extension})
	define(t, s, "example.com")
	client := dynamic.NewForConfigOrDie(s.Config)
	pipelines := client.Resource(civ1.SchemeGroupVersion.WithResource("pipelines"))
	pipeline := func(name string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": civ1.SchemeGroupVersion.String(), "kind": "Pipeline",
			"metadata": map[string]any{"name": name},
			"spec": map[string]any{"image": "golang:1.26",
				"steps": []any{map[string]any{"name": "a", "command": []any{"true"}}}},
		}}
	}
	for what, c := range map[string]struct {
		resource dynamic.NamespaceableResourceInterface
		object   func(string) *unstructured.Unstructured
	}{"a definition's": {client.Resource(gadgets), gadget}, "a Go type's": {pipelines, pipeline}} {
		if _, err := c.resource.Namespace("default").Create(t.Context(), c.object("vetoed"),
			metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s object that the author's plugin refuses: %v", what, err)
		}
		if _, err := c.resource.Namespace("missing").Create(t.Context(), c.object("one"),
			metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s object in a missing namespace: %v", what, err)
		}
		if _, err := c.resource.Namespace("default").Create(t.Context(), c.object("one"),
			metav1.CreateOptions{}); err != nil {
			t.Errorf("%s object: %v", what, err)
		}
	}
}

// A group that would be stored where the core API is stored is refused.
func TestGroupNamedLikeCoreResource(t *testing.T) {
	extension := func(c *genericapiserver.RecommendedConfig,
		e definitions.Options) (definitions.Extend, error) {
		extend, err := crds.Prepare(c, e)
		return func(s *genericapiserver.GenericAPIServer) (*genericapiserver.GenericAPIServer,
			error) {
			s.DiscoveryGroupManager.AddGroup(metav1.APIGroup{Name: "secrets"})
			if _, err := extend(s); err == nil ||
				!strings.Contains(err.Error(), "the group secrets would be stored where the core "+
					"API stores its secrets: give the group the name of a domain") {
				t.Errorf("a group that is named like a resource: %v", err)
			}
			return s, nil
		}, err
	}
	api := exampletest.API
	api.New = func(c *genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer,
		error) {
		c.ReadyzChecks = nil // nobody makes the namespaces
		return exampletest.API.New(c)
	}
	testkit.Start(t, api, testkit.Options{Definitions: extension})
}

func condition(t testing.TB, s *testkit.Server, name string,
	kind apiextensionsv1.CustomResourceDefinitionConditionType) apiextensionsv1.CustomResourceDefinitionCondition {
	t.Helper()
	d,
		err := apiextensions.NewForConfigOrDie(s.Config).ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range d.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return apiextensionsv1.CustomResourceDefinitionCondition{}
}

// A server gets a group of Go types for which there are definitions already: its own group is
// served, and the definitions say that they are not. Nothing is lost: a server without the Go types
// serves them again.
func TestDefinitionsOlderThanGoTypes(t *testing.T) {
	dir, group := t.TempDir(), civ1.SchemeGroupVersion.Group
	const kind = apiextensionsv1.NamesAccepted
	definedGadgets := civ1.SchemeGroupVersion.WithResource("gadgets")
	object := gadget("one")
	object.SetAPIVersion(civ1.SchemeGroupVersion.String())

	s := crdstest.Start(t, testkit.Options{Dir: dir})
	define(t, s, group)
	d,
		err := apiextensions.NewForConfigOrDie(s.Config).ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), "gadgets."+group, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d.ObjectMeta, d.Status = metav1.ObjectMeta{Name: "pipelines." + group},
		apiextensionsv1.CustomResourceDefinitionStatus{}
	d.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: "pipelines",
		Kind: "Pipeline"}
	if _,
		err := apiextensions.NewForConfigOrDie(s.Config).ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second definition is established", func(context.Context) (bool, error) {
		return condition(t, s, "pipelines."+group,
			apiextensionsv1.Established).Status == apiextensionsv1.ConditionTrue, nil
	})
	if _,
		err := dynamic.NewForConfigOrDie(s.Config).Resource(definedGadgets).Namespace("default").Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Stop()

	s = exampletest.Start(t, testkit.Options{Dir: dir, Definitions: crds.Prepare})
	for _, name := range []string{"gadgets." + group, "pipelines." + group} {
		eventually(t, "the definition says that it is not served",
			func(context.Context) (bool, error) {
				return condition(t, s, name, kind).Status == apiextensionsv1.ConditionFalse &&
					condition(t, s, name,
						apiextensionsv1.Established).Status == apiextensionsv1.ConditionFalse, nil
			})
		if c := condition(t, s, name, kind); c.Reason != "GroupOfServer" ||
			!strings.Contains(c.Message,
				"the group ci.rowkeeper.dev belongs to the server itself") {
			t.Errorf("the condition is %v", c)
		}
	}
	client := dynamic.NewForConfigOrDie(s.Config)
	if _, err := client.Resource(definedGadgets).Namespace("default").List(t.Context(),
		metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what is defined in the server's group: %v", err)
	}
	pipelines := client.Resource(civ1.SchemeGroupVersion.WithResource("pipelines")).Namespace("default")
	_, err = pipelines.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": civ1.SchemeGroupVersion.String(), "kind": "Pipeline",
		"metadata": map[string]any{"name": "bad"}, "spec": map[string]any{},
	}}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("an object that the Go type's validation refuses: %v", err)
	}
	good, err := pipelines.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": civ1.SchemeGroupVersion.String(), "kind": "Pipeline",
		"metadata": map[string]any{"name": "good"},
		"spec": map[string]any{"image": "golang:1.26",
			"steps": []any{map[string]any{"name": "a", "command": []any{"true"}}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Every kind of discovery, and the schemas, are those of the Go types.
	for path, c := range map[string]struct{ accept, there, not string }{
		"/apis":                             {"application/json", `"` + group + `"`, ""},
		"/apis/" + group:                    {"application/json", `"` + group + `/v1alpha1"`, ""},
		"/apis/" + group + "/v1":            {"application/json", `"pipelineruns"`, `"gadgets"`},
		"/apis?aggregated":                  {"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", `"pipelineruns"`, `"gadgets"`},
		"/openapi/v3/apis/" + group + "/v1": {"application/json", "maxParallelRuns", "gadgets"},
		"/openapi/v2":                       {"application/json", "maxParallelRuns", "gadgets"},
	} {
		where, _, _ := strings.Cut(path, "?")
		body,
			err := kubernetes.NewForConfigOrDie(s.Config).Discovery().RESTClient().Get().AbsPath(where).SetHeader("Accept", c.accept).DoRaw(t.Context())
		if err != nil || !strings.Contains(string(body), c.there) ||
			c.not != "" && strings.Contains(string(body), c.not) {
			t.Errorf("%s: %v: has %s: %v, and %s", path, err, c.there,
				strings.Contains(string(body), c.there), c.not)
		}
	}
	// The deletion of a definition does not touch the objects of the Go type that has its name.
	if err := apiextensions.NewForConfigOrDie(s.Config).ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), "pipelines."+group, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the definition is gone", func(ctx context.Context) (bool, error) {
		_,
			err := apiextensions.NewForConfigOrDie(s.Config).ApiextensionsV1().CustomResourceDefinitions().Get(ctx, "pipelines."+group, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	if got, err := pipelines.Get(t.Context(), "good", metav1.GetOptions{}); err != nil ||
		got.GetUID() != good.GetUID() {
		t.Errorf("the object of the Go type is %v, %v", got, err)
	}
	s.Stop()

	s = crdstest.Start(t, testkit.Options{Dir: dir})
	eventually(t, "the definition is served again, with its object",
		func(ctx context.Context) (bool, error) {
			_,
				err := dynamic.NewForConfigOrDie(s.Config).Resource(definedGadgets).Namespace("default").Get(ctx, "one", metav1.GetOptions{})
			return err == nil, nil
		})
}

// kubectl waits for a condition of a definition that has none yet, and does not fail.
func TestNewDefinitionHasConditions(t *testing.T) {
	s := crdstest.Start(t, testkit.Options{})
	changes, err := dynamic.NewForConfigOrDie(s.Config).Resource(
		apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")).Watch(t.Context(),
		metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()
	define(t, s, "example.com")
	for change := range changes.ResultChan() {
		d, ok := change.Object.(*unstructured.Unstructured)
		if !ok {
			t.Fatalf("a definition is %v", change.Object)
		}
		// As kubectl reads them.
		conditions, there, err := unstructured.NestedSlice(d.Object, "status", "conditions")
		if err != nil || !there {
			t.Errorf("the conditions of a definition are %v, %v (%s)", conditions, err, change.Type)
		}
		if len(conditions) > 0 {
			break
		}
	}
}

// Changes that the server makes to a definition for its own handlers are not written to the
// database.
func TestEstablishedDate(t *testing.T) {
	s := crdstest.Start(t, testkit.Options{})
	define(t, s, "example.com")
	before := condition(t, s, "gadgets.example.com", apiextensionsv1.Established)
	client := apiextensions.NewForConfigOrDie(s.Config).ApiextensionsV1().CustomResourceDefinitions()
	// New names, and an annotation, are what controllers write a status for.
	if _, err := client.Patch(t.Context(), "gadgets.example.com", types.MergePatchType,
		[]byte(`{"spec":{"names":{"shortNames":["gd"],"singular":"gadget"}}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the names are accepted", func(ctx context.Context) (bool, error) {
		d, err := client.Get(ctx, "gadgets.example.com", metav1.GetOptions{})
		return err == nil && slices.Contains(d.Status.AcceptedNames.ShortNames, "gd"), err
	})
	if after := condition(t, s, "gadgets.example.com",
		apiextensionsv1.Established); after != before {
		t.Errorf("the condition was %v, and is %v", before, after)
	}
}

// A definition of which no version is served is in no discovery, and comes back with its objects.
func TestNothingServed(t *testing.T) {
	s := crdstest.Start(t, testkit.Options{})
	define(t, s, "example.com")
	there := dynamic.NewForConfigOrDie(s.Config).Resource(gadgets).Namespace("default")
	if _, err := there.Create(t.Context(), gadget("one"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client := apiextensions.NewForConfigOrDie(s.Config).ApiextensionsV1().CustomResourceDefinitions()
	for _, served := range []bool{false, true} {
		patch := []byte(`[{"op":"replace","path":"/spec/versions/0/served","value":` +
			map[bool]string{true: "true", false: "false"}[served] + `}]`)
		if _, err := client.Patch(t.Context(), "gadgets.example.com", types.JSONPatchType, patch,
			metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "objects are served or not", func(ctx context.Context) (bool, error) {
			_, err := there.Get(ctx, "one", metav1.GetOptions{})
			return (err == nil) == served, nil
		})
		for _, accept := range []string{"application/json",
			"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"} {
			eventually(t, "the group is listed or not", func(ctx context.Context) (bool, error) {
				body,
					err := kubernetes.NewForConfigOrDie(s.Config).Discovery().RESTClient().Get().AbsPath("/apis").SetHeader("Accept", accept).DoRaw(ctx)
				return strings.Contains(string(body), `"example.com"`) == served, err
			})
		}
	}
}

// slowWebhook has a webhook called for new objects whose names begin with slow. It says so to
// arrived, and answers when it is told to by leave.
func slowWebhook(t *testing.T, s *testkit.Server) (arrived chan string, leave chan struct{}) {
	t.Helper()
	arrived, leave = make(chan string), make(chan struct{})
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionreview.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		arrived <- review.Request.Name
		<-leave
		review.Response = &admissionreview.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		answer, err := json.Marshal(review)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Write(answer) //nolint:errcheck // whoever asked has gone
	}))
	t.Cleanup(hook.Close)
	_,
		err := kubernetes.NewForConfigOrDie(s.Config).AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "slow"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "slow.example.com",
			ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To(hook.URL),
				CABundle: certificateOf(hook)}, TimeoutSeconds: ptr.To[int32](30),
			SideEffects:             ptr.To(admissionv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule: admissionv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"},
					Resources: []string{"configmaps", "gadgets", "notes", "pipelines"}},
			}},
			MatchConditions: []admissionv1.MatchCondition{{Name: "slow",
				Expression: "object.metadata.name.startsWith('slow')"}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	core := kubernetes.NewForConfigOrDie(s.Config).CoreV1()
	eventually(t, "the webhook is called", func(ctx context.Context) (bool, error) {
		answer := make(chan error)
		go func() {
			_, err := core.ConfigMaps("default").Create(ctx,
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "slow-"}},
				metav1.CreateOptions{})
			answer <- err
		}()
		select {
		case <-arrived:
			leave <- struct{}{}
			return true, <-answer
		case err := <-answer:
			return false, err
		}
	})
	return arrived, leave
}

// Note is what is served besides by a group of the test kit.
type Note struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
}

func (n *Note) DeepCopyObject() runtime.Object { return kinds.DeepCopy(n) }

var notes = schema.GroupVersionResource{Group: "notes.example.com", Version: "v1",
	Resource: "notes"}

func noteGroup(t *testing.T) testkit.Group {
	t.Helper()
	api, err := kinds.New(kinds.Group{
		Name: notes.Group, Versions: []string{notes.Version},
		Kinds: []kinds.Definition{kinds.Define(kinds.Kind[Note]{})},
	})
	if err != nil {
		t.Fatal(err)
	}
	return testkit.Group{
		Scheme: api.Scheme, Codecs: api.Codecs, OpenAPI: api.OpenAPI,
		New: func(getter generic.RESTOptionsGetter) (*genericapiserver.APIGroupInfo, error) {
			infos, err := api.GroupInfos(getter)
			if err != nil {
				return nil, err
			}
			return infos[0], nil
		},
	}
}

// While an object is being admitted, its namespace is deleted, and is gone. The object is not left
// behind, and the client is told.
func TestNamespaceGoneDuringAdmission(t *testing.T) {
	s := exampletest.Start(t, testkit.Options{Definitions: crds.Prepare,
		Groups: []testkit.Group{noteGroup(t)}})
	define(t, s, "example.com")
	arrived, leave := slowWebhook(t, s)
	core := kubernetes.NewForConfigOrDie(s.Config).CoreV1()
	client := dynamic.NewForConfigOrDie(s.Config)
	object := func(apiVersion, kind, rest string) []byte {
		return []byte(`{"apiVersion":"` + apiVersion + `","kind":"` + kind +
			`","metadata":{"name":"slow"}` + rest + `}`)
	}
	ways := []string{"POST", "apply"}
	resources := map[string]struct {
		client dynamic.NamespaceableResourceInterface
		object []byte
		ways   []string // in which it is created
	}{
		"core": {client.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")),
			object("v1", "ConfigMap", ""), ways},
		"definition": {client.Resource(gadgets), object("example.com/v1", "Gadget", ""), ways},
		"added group": {client.Resource(notes), object(notes.GroupVersion().String(), "Note", ""),
			ways},
		"Go type": {
			client.Resource(civ1.SchemeGroupVersion.WithResource("pipelines")),
			object(civ1.SchemeGroupVersion.String(), "Pipeline",
				`,"spec":{"image":"golang:1.26","steps":[{"name":"a","command":["true"]}]}`), ways,
		},
	}
	gone := func(t *testing.T, team string) {
		t.Helper()
		eventually(t, "the namespace is gone", func(ctx context.Context) (bool, error) {
			_, err := core.Namespaces().Get(ctx, team, metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		})
	}
	for what, r := range resources {
		create := map[string]func(context.Context, string) error{
			"POST": func(ctx context.Context, team string) error {
				o := &unstructured.Unstructured{}
				if err := o.UnmarshalJSON(r.object); err != nil {
					return err
				}
				_, err := r.client.Namespace(team).Create(ctx, o, metav1.CreateOptions{})
				return err
			},
			"apply": func(ctx context.Context, team string) error {
				_, err := r.client.Namespace(team).Patch(ctx, "slow", types.ApplyPatchType,
					r.object, metav1.PatchOptions{FieldManager: "x"})
				return err
			},
		}
		for _, how := range r.ways {
			for state, deleted := range map[string]bool{"gone": true, "Terminating": false} {
				t.Run(what+" "+how+" "+state, func(t *testing.T) {
					n, err := core.Namespaces().Create(t.Context(),
						&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "team-"}},
						metav1.CreateOptions{})
					if err != nil {
						t.Fatal(err)
					}
					team := n.Name
					if !deleted {
						holder := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "holder",
							Finalizers: []string{"example.com/wait"}}}
						if _, err := core.ConfigMaps(team).Create(t.Context(), holder,
							metav1.CreateOptions{}); err != nil {
							t.Fatal(err)
						}
					}
					answer := make(chan error)
					go func() { answer <- create[how](t.Context(), team) }()
					select {
					case <-arrived:
					case err := <-answer:
						t.Fatalf("the webhook was not called: %v", err)
					}
					if err := core.Namespaces().Delete(t.Context(), team,
						metav1.DeleteOptions{}); err != nil {
						t.Fatal(err)
					}
					if deleted {
						gone(t, team)
					}
					leave <- struct{}{}
					err = <-answer
					if deleted && (!apierrors.IsNotFound(err) ||
						!strings.Contains(err.Error(), `namespaces "`+team+`" not found`)) ||
						!deleted && (!apierrors.IsForbidden(err) ||
							!strings.Contains(err.Error(), "because it is being terminated") ||
							!apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)) {
						t.Errorf("the client is told: %v", err)
					}
					if _, err := r.client.Namespace(team).Get(t.Context(), "slow",
						metav1.GetOptions{}); !apierrors.IsNotFound(err) {
						t.Errorf("the object is left behind: %v", err)
					}
					if !deleted {
						if _, err := core.ConfigMaps(team).Patch(t.Context(), "holder",
							types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
							metav1.PatchOptions{}); err != nil {
							t.Fatal(err)
						}
					}
					gone(t, team)
				})
			}
		}
	}
}

func certificateOf(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

// Whether other servers may use the same objects is known however the prefix was set.
func TestReplicasAreKnown(t *testing.T) {
	for name, c := range map[string]struct {
		options  testkit.Options
		replicas bool
	}{
		"alone":                     {testkit.Options{}, false},
		"in a directory of its own": {testkit.Options{Dir: t.TempDir()}, false},
		"with a prefix":             {testkit.Options{Prefix: "/shared"}, true},
		"with a prefix that is set with other options": {testkit.Options{Storage: func(o *options.StorageOptions) {
			o.Prefix = "/shared"
		}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			c.options.Definitions = func(config *genericapiserver.RecommendedConfig,
				e definitions.Options) (definitions.Extend, error) {
				if e.SingleServer == c.replicas {
					t.Errorf("a single server: %v", e.SingleServer)
				}
				return crds.Prepare(config, e)
			}
			exampletest.Start(t, c.options)
		})
	}
}

// The same with two servers: the namespace goes on one while an object is admitted by the other.
func TestNamespaceGoneOnReplica(t *testing.T) {
	o := testkit.Options{Prefix: "/shared", Database: testkit.Database{URL: "sqlite://" +
		t.TempDir() + "/state.db", Driver: sqlite.Driver}}
	one, other := crdstest.Start(t, o), crdstest.Start(t, o)
	arrived, leave := slowWebhook(t, one)
	here, there := kubernetes.NewForConfigOrDie(one.Config).CoreV1(),
		kubernetes.NewForConfigOrDie(other.Config).CoreV1()
	if _, err := here.Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	answer := make(chan error)
	go func() {
		_, err := here.ConfigMaps("team").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "slow"}}, metav1.CreateOptions{})
		answer <- err
	}()
	select {
	case <-arrived:
	case err := <-answer:
		t.Fatalf("the webhook was not called: %v", err)
	}
	if err := there.Namespaces().Delete(t.Context(), "team", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace is gone", func(ctx context.Context) (bool, error) {
		_, err := there.Namespaces().Get(ctx, "team", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	leave <- struct{}{}
	if err := <-answer; !apierrors.IsNotFound(err) ||
		!strings.Contains(err.Error(), `namespaces "team" not found`) {
		t.Errorf("the client is told: %v", err)
	}
	if _, err := there.ConfigMaps("team").Get(t.Context(), "slow",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the object is left behind: %v", err)
	}
}
