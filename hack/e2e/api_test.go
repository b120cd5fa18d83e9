package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/util/retry"
)

// testDiscovery looks at what the cluster's API server says of our group.
func testDiscovery(t *testing.T) {
	client := env.client.Discovery()
	groups, lists, err := client.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(groups, func(g *metav1.APIGroup) bool { return g.Name == group })
	if i < 0 {
		t.Fatalf("the group %s is not in discovery", group)
	}
	if got := groups[i].PreferredVersion.Version; got != "v1" {
		t.Errorf("the preferred version is %s, want v1", got)
	}
	// Every version that the server has must have an APIService in deploy/, or nobody can reach it.
	installed := env.installation.apiServices()
	slices.Sort(installed)
	if served := servedVersions(t); !slices.Equal(served, installed) {
		t.Errorf("the server has the versions %v, deploy/ has APIServices for %v",
			served, installed)
	}
	for _, version := range []string{"v1", "v1alpha1"} {
		i := slices.IndexFunc(lists, func(l *metav1.APIResourceList) bool {
			return l.GroupVersion == group+"/"+version
		})
		if i < 0 {
			t.Errorf("%s is not in discovery", version)
			continue
		}
		if !slices.ContainsFunc(lists[i].APIResources, func(r metav1.APIResource) bool {
			return r.Name == "pipelines" && r.Kind == "Pipeline" && r.Namespaced
		}) {
			t.Errorf("%s has no pipelines", version)
		}
	}
	if out := kubectl(t, "api-resources", "--api-group", group,
		"--cached=false"); !strings.Contains(out, "pipelines") {
		t.Errorf("kubectl api-resources prints:\n%s", out)
	}
	testOpenAPI(t, client)
}

// servedVersions asks a replica itself which versions of which groups it has.
func servedVersions(t *testing.T) []string {
	t.Helper()
	direct, err := discovery.NewDiscoveryClientForConfig(env.direct(t, env.proxyCertificate(t),
		"admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	groups, err := direct.ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, g := range groups.Groups {
		for _, v := range g.Versions {
			names = append(names, v.Version+"."+g.Name)
		}
	}
	slices.Sort(names)
	return names
}

func testOpenAPI(t *testing.T, client discovery.DiscoveryInterface) {
	t.Helper()
	// The aggregator asks for documents in the background, so they may come a little later than the
	// APIService is available.
	eventually(t, time.Minute, func() error {
		document, err := client.OpenAPISchema()
		if err != nil {
			return err
		}
		for _, d := range document.GetDefinitions().GetAdditionalProperties() {
			if strings.HasSuffix(d.GetName(), ".v1.Pipeline") {
				return nil
			}
		}
		return fmt.Errorf("the OpenAPI document of version 2 has no Pipeline")
	})
	eventually(t, time.Minute, func() error {
		paths, err := client.OpenAPIV3().Paths()
		if err != nil {
			return err
		}
		for _, version := range []string{"v1", "v1alpha1"} {
			path, ok := paths["apis/"+group+"/"+version]
			if !ok {
				return fmt.Errorf("the OpenAPI of version 3 has no document for %s", version)
			}
			document, err := path.Schema("application/json")
			if err != nil {
				return err
			}
			if !strings.Contains(string(document), `"kind":"Pipeline"`) {
				return fmt.Errorf("the OpenAPI document of %s has no Pipeline", version)
			}
		}
		return nil
	})
	for version, field := range map[string]string{"v1": "steps", "v1alpha1": "commands"} {
		out := kubectl(t, "explain", "pipelines.spec", "--api-version", group+"/"+version)
		if !strings.Contains(out, field) {
			t.Errorf("kubectl explain pipelines.spec in %s has no field %s:\n%s", version,
				field, out)
		}
	}
}

// testVerbs uses every verb through the front door, in one version.
func testVerbs(resource schema.GroupVersionResource,
	make func(string) *unstructured.Unstructured) func(*testing.T) {
	return func(t *testing.T) {
		ns := newNamespace(t)
		client := env.dynamic.Resource(resource).Namespace(ns)
		ctx := t.Context()
		list, err := client.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := client.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		next := func(want watch.EventType, name string) *unstructured.Unstructured {
			t.Helper()
			select {
			case event := <-w.ResultChan():
				object, ok := event.Object.(*unstructured.Unstructured)
				if !ok || event.Type != want || object.GetName() != name {
					t.Fatalf("the watch says %s %v, want %s %s", event.Type, event.Object,
						want, name)
				}
				return object
			case <-time.After(30 * time.Second):
				t.Fatalf("the watch does not say %s %s", want, name)
			}
			return nil
		}

		created, err := client.Create(ctx, make("a"), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		next(watch.Added, "a")
		got, err := client.Get(ctx, "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.GetUID() != created.GetUID() ||
			got.GetResourceVersion() != created.GetResourceVersion() {
			t.Errorf("get returns %v, create %v", got, created)
		}
		_, err = client.Create(ctx, make("a"), metav1.CreateOptions{})
		expect(t, "creating it again", err, metav1.StatusReasonAlreadyExists)

		got.SetLabels(map[string]string{"team": "a"})
		updated, err := client.Update(ctx, got, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if next(watch.Modified, "a").GetResourceVersion() != updated.GetResourceVersion() {
			t.Error("the watch has another resourceVersion than the update")
		}
		created.SetLabels(map[string]string{"team": "b"})
		_, err = client.Update(ctx, created, metav1.UpdateOptions{})
		expect(t, "updating an old version", err, metav1.StatusReasonConflict)

		patches := []struct {
			kind types.PatchType
			body string
		}{
			{types.JSONPatchType, `[{"op":"add","path":"/metadata/labels/json","value":"yes"}]`},
			{types.MergePatchType, `{"metadata":{"labels":{"merge":"yes"}}}`},
			{types.StrategicMergePatchType, `{"metadata":{"labels":{"strategic":"yes"}}}`},
		}
		for _, p := range patches {
			if _, err := client.Patch(ctx, "a", p.kind, []byte(p.body),
				metav1.PatchOptions{}); err != nil {
				t.Errorf("%s: %v", p.kind, err)
				continue
			}
			next(watch.Modified, "a")
		}
		if got, err = client.Get(ctx, "a", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if labels := got.GetLabels(); len(labels) != 4 {
			t.Errorf("after three patches the labels are %v", labels)
		}

		applied := make("b")
		if _, err := client.Apply(ctx, "b", applied,
			metav1.ApplyOptions{FieldManager: "one"}); err != nil {
			t.Fatal(err)
		}
		next(watch.Added, "b")
		if err := unstructured.SetNestedField(applied.Object, "golang:1.27", "spec",
			"image"); err != nil {
			t.Fatal(err)
		}
		_, err = client.Apply(ctx, "b", applied, metav1.ApplyOptions{FieldManager: "two"})
		expect(t, "applying as somebody else", err, metav1.StatusReasonConflict)
		if _, err := client.Apply(ctx, "b", applied, metav1.ApplyOptions{FieldManager: "two",
			Force: true}); err != nil {
			t.Errorf("applying as somebody else with force: %v", err)
		}
		next(watch.Modified, "b")

		if err := client.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		next(watch.Deleted, "a")
		_, err = client.Get(ctx, "a", metav1.GetOptions{})
		expect(t, "getting it after its deletion", err, metav1.StatusReasonNotFound)

		testPages(t, ns, resource, make)
		if err := client.DeleteCollection(ctx, metav1.DeleteOptions{},
			metav1.ListOptions{LabelSelector: "page"}); err != nil {
			t.Fatal(err)
		}
		rest, err := client.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(rest.Items) != 1 || rest.Items[0].GetName() != "b" {
			t.Errorf("after deleting the collection %d objects are left, want b alone",
				len(rest.Items))
		}
		testApply(t, ns, make)
	}
}

// testPages makes 25 objects and lists them by pages of 10, while one of them is deleted and
// another one created.
func testPages(t *testing.T, ns string, resource schema.GroupVersionResource,
	make func(string) *unstructured.Unstructured) {
	t.Helper()
	client := env.dynamic.Resource(resource).Namespace(ns)
	const n = 25
	name := func(i int) string { return fmt.Sprintf("page-%02d", i) }
	for i := range n {
		object := make(name(i))
		object.SetLabels(map[string]string{"page": ""})
		if _, err := client.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	options := metav1.ListOptions{Limit: 10, LabelSelector: "page"}
	version := ""
	for pages := 1; ; pages++ {
		page, err := client.List(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		if version == "" {
			version = page.GetResourceVersion()
			if err := client.Delete(t.Context(), name(n-1), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if page.GetResourceVersion() != version {
			t.Errorf("page %d is at version %s, the first at %s", pages, page.GetResourceVersion(),
				version)
		}
		for _, item := range page.Items {
			names = append(names, item.GetName())
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			if pages != 3 {
				t.Errorf("there are %d pages, want 3", pages)
			}
			break
		}
	}
	for i := range n {
		if i >= len(names) || names[i] != name(i) {
			t.Fatalf("the pages have %v, want page-00 to page-24, as it was at the first page",
				names)
		}
	}
}

// testApply lets kubectl apply a manifest in both ways.
func testApply(t *testing.T, ns string, make func(string) *unstructured.Unstructured) {
	t.Helper()
	object := make("applied")
	manifest := func(image string) string {
		if err := unstructured.SetNestedField(object.Object, image, "spec", "image"); err != nil {
			t.Fatal(err)
		}
		text, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, step := range []struct{ image, flag, want string }{
		{"golang:1.25", "", "created"},
		{"golang:1.25", "", "unchanged"},
		{"golang:1.26", "", "configured"},
		{"golang:1.27", "--server-side --force-conflicts", "serverside-applied"},
	} {
		args := append([]string{"apply", "-n", ns, "-f", "-"}, strings.Fields(step.flag)...)
		if out := kubectlInput(t, manifest(step.image), args...); !strings.Contains(out,
			step.want) {
			t.Errorf("kubectl %s prints %q, want %s", strings.Join(args, " "), out, step.want)
		}
	}
}

// testVersions looks at one object through both versions.
func testVersions(t *testing.T) {
	ns := newNamespace(t)
	w, err := env.dynamic.Resource(pipelinesV1alpha1).Namespace(ns).Watch(t.Context(),
		metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	created := create(t, ns, pipeline("both"))
	select {
	case event := <-w.ResultChan():
		object := event.Object.(*unstructured.Unstructured)
		if object.GetUID() != created.GetUID() || object.GetAPIVersion() != group+"/v1alpha1" {
			t.Errorf("the watch in v1alpha1 says %v", object)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("a watch in v1alpha1 does not see what is created in v1")
	}
	out := kubectl(t, "get", "-n", ns, "pipelines.v1alpha1."+group, "both", "-o",
		"jsonpath={.spec.commands}")
	if !strings.Contains(out, "make test") {
		t.Errorf("the commands in v1alpha1 are %q", out)
	}
}

// testSubresources uses subresources that are more than a part of an object through the front door:
// one that takes a kind and returns another, one of autoscaling/v1, and a stream.
func testSubresources(t *testing.T) {
	ns := newNamespace(t)
	create(t, ns, pipeline("a"))
	run, err := env.dynamic.Resource(pipelinesV1).Namespace(ns).Create(t.Context(), runRequest("a"),
		metav1.CreateOptions{}, "run")
	if err != nil {
		t.Fatal(err)
	}
	if out := kubectl(t, "scale", "-n", ns, "pipelines/a", "--replicas=7"); !strings.Contains(out,
		"scaled") {
		t.Errorf("kubectl scale prints %q", out)
	}
	if out := kubectl(t, "get", "-n", ns, "pipelines/a", "-o",
		"jsonpath={.spec.maxParallelRuns}"); out != "7" {
		t.Errorf("after scaling to 7, spec.maxParallelRuns is %q", out)
	}
	testLog(t, ns, run)
}

// testLog follows the log of a run while its lines are written, to its end.
func testLog(t *testing.T, ns string, run *unstructured.Unstructured) {
	t.Helper()
	rest := env.client.Discovery().RESTClient()
	path := fmt.Sprintf("/apis/%s/v1/namespaces/%s/pipelineruns/%s/log", group, ns, run.GetName())
	stream, err := rest.Get().AbsPath(path).Param("follow", "true").Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(stream); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	for n := range 3 {
		line := fmt.Sprintf("line %d", n)
		chunk := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": group + "/v1", "kind": "LogChunk",
			"metadata": map[string]any{"generateName": run.GetName() + "-"},
			"spec": map[string]any{"runName": run.GetName(), "runUID": string(run.GetUID()),
				"sequence": int64(n), "lines": []any{line}},
		}}
		if _,
			err := env.dynamic.Resource(pipelinesV1.GroupVersion().WithResource("logchunks")).Namespace(ns).Create(t.Context(), chunk, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-lines:
			if !strings.HasSuffix(got, line) {
				t.Errorf("the log has %q, want %q", got, line)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("the log does not have %q, though it was written", line)
		}
	}
}

// testUpstream does what upstream's own test of aggregated API servers does
// (test/e2e/apimachinery/aggregator.go), with our group: through the aggregator, with clients of
// different kinds.
func testUpstream(t *testing.T) {
	ns := newNamespace(t)
	rest := env.client.Discovery().RESTClient()
	path := fmt.Sprintf("/apis/%s/v1/namespaces/%s/pipelines", group, ns)
	body, err := pipeline("rest-flunder").MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	var code int
	if err := rest.Post().AbsPath(path).SetHeader("Content-Type",
		"application/json").Body(body).Do(t.Context()).StatusCode(&code).Error(); err != nil ||
		code != 201 {
		t.Fatalf("POST answers %d, %v", code, err)
	}
	list, err := rest.Get().AbsPath(path).DoRaw(t.Context())
	if err != nil || !strings.Contains(string(list), "rest-flunder") {
		t.Fatalf("the list is %s, %v", list, err)
	}
	if err := rest.Delete().AbsPath(path +
		"/rest-flunder").Do(t.Context()).StatusCode(&code).Error(); err != nil || code != 200 {
		t.Fatalf("DELETE answers %d, %v", code, err)
	}

	preferred, err := discovery.ServerPreferredNamespacedResources(env.client.Discovery())
	if err != nil {
		t.Fatal(err)
	}
	resources, err := discovery.GroupVersionResources(preferred)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := resources[pipelinesV1]; !ok {
		t.Errorf("%v is not among the preferred resources", pipelinesV1)
	}

	client := env.dynamic.Resource(pipelinesV1).Namespace(ns)
	created, err := client.Create(t.Context(), pipeline("dynamic-flunder"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	only := func(uid types.UID) {
		t.Helper()
		objects, err := client.List(t.Context(), metav1.ListOptions{})
		if err != nil || len(objects.Items) != 1 || objects.Items[0].GetUID() != uid {
			t.Fatalf("the dynamic client lists %v, %v, want %s alone", objects, err, uid)
		}
	}
	only(created.GetUID())
	changeAPIService(t)
	if err := client.Delete(t.Context(), "dynamic-flunder", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if objects, err := client.List(t.Context(), metav1.ListOptions{}); err != nil ||
		len(objects.Items) != 0 {
		t.Fatalf("after the deletion the dynamic client lists %v, %v", objects, err)
	}
	if created, err = client.Create(t.Context(), pipeline("dynamic-flunder"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	// Without the APIService the cluster knows nothing of the resource. Registered anew, everything
	// is there again.
	services := env.dynamic.Resource(apiServices)
	selected := metav1.ListOptions{LabelSelector: apiServiceLabel + "=updated"}
	if err := services.DeleteCollection(t.Context(), metav1.DeleteOptions{}, selected); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, func() error {
		list, err := services.List(t.Context(), selected)
		if err == nil && len(list.Items) > 0 {
			err = errors.New("the APIService is still there after its deletion")
		}
		return err
	})
	eventually(t, time.Minute, func() error {
		switch _, err := client.List(t.Context(), metav1.ListOptions{}); {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return errors.New("the resource is still there after its APIService was deleted")
	})
	kubectl(t, "apply", "--server-side", "-k", env.installation.overlay)
	env.installation.waitAvailable(t)
	eventually(t, time.Minute, func() error {
		_, err := client.List(t.Context(), metav1.ListOptions{})
		return err
	})
	only(created.GetUID())
}

// apiServiceLabel is a label of the APIService that changeAPIService changes.
const apiServiceLabel = "e2e.rowkeeper.dev/apiservice"

// changeAPIService reads the APIService of version v1, patches and replaces it, and does the same
// with its status, beside the conditions of the aggregator.
func changeAPIService(t *testing.T) {
	t.Helper()
	const name = "v1." + group
	ctx, services := t.Context(), env.dynamic.Resource(apiServices)
	if _, message, err := available(ctx, name); err != nil || message != "all checks passed" {
		t.Errorf("the condition Available of %s says %q, %v, want \"all checks passed\"", name,
			message, err)
	}
	patched, err := services.Patch(ctx, name, types.MergePatchType,
		[]byte(`{"spec":{"versionPriority":400},"metadata":{"labels":{"`+apiServiceLabel+
			`":"patched"}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if priority, _, _ := unstructured.NestedInt64(patched.Object, "spec",
		"versionPriority"); priority != 400 {
		t.Errorf("the patched version priority is %d, want 400", priority)
	}
	list, err := services.List(ctx, metav1.ListOptions{LabelSelector: apiServiceLabel + "=patched"})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetName() != name {
		t.Fatalf("the list of the patched APIServices is %v, %v, want %s", list, err, name)
	}

	// change makes a change again and again until nobody else made one in between.
	change := func(how func(*unstructured.Unstructured) error) {
		t.Helper()
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			service, err := services.Get(ctx, name, metav1.GetOptions{}, "status")
			if err != nil {
				return err
			}
			return how(service)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	with := func(service *unstructured.Unstructured, kind string) []any {
		t.Helper()
		conditions, _, err := unstructured.NestedSlice(service.Object, "status", "conditions")
		if err != nil {
			t.Fatal(err)
		}
		return append(conditions, map[string]any{
			"type": kind, "status": "True", "reason": "E2E", "message": "Set by a test",
			"lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
		})
	}
	change(func(service *unstructured.Unstructured) error {
		if err := unstructured.SetNestedSlice(service.Object, with(service, "StatusUpdated"),
			"status", "conditions"); err != nil {
			return err
		}
		_, err := services.UpdateStatus(ctx, service, metav1.UpdateOptions{})
		return err
	})
	change(func(service *unstructured.Unstructured) error {
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"resourceVersion": service.GetResourceVersion()},
			"status":   map[string]any{"conditions": with(service, "StatusPatched")},
		})
		if err != nil {
			return err
		}
		_, err = services.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{},
			"status")
		return err
	})
	change(func(service *unstructured.Unstructured) error {
		service.SetLabels(map[string]string{apiServiceLabel: "updated"})
		_, err := services.Update(ctx, service, metav1.UpdateOptions{})
		return err
	})
	service, err := services.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"Available", "StatusUpdated", "StatusPatched"} {
		if !strings.Contains(fmt.Sprint(service.Object["status"]), "type:"+kind) {
			t.Errorf("the status of the APIService has no condition %s: %v", kind,
				service.Object["status"])
		}
	}
}
