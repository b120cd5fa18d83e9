package kinds_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	metadataclient "k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/pkg/example/exampletest"
	"github.com/rowkeeper/rowkeeper/pkg/kinds"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// kube-controller-manager accepts these, of objects and of their metadata.
const (
	anyObject   = "application/vnd.kubernetes.protobuf,application/json"
	anyMetadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1," +
		"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
)

// groupsAsUpstream are the example's groups with the media types that upstream's
// NewDefaultAPIGroupInfo offers, as in a server that is written without package kinds.
func groupsAsUpstream(api *kinds.API,
	getter generic.RESTOptionsGetter) ([]*genericapiserver.APIGroupInfo, error) {
	infos, err := api.GroupInfos(getter)
	for _, info := range infos {
		upstream := genericapiserver.NewDefaultAPIGroupInfo(example.Name, api.Scheme,
			info.ParameterCodec, api.Codecs)
		info.NegotiatedSerializer = upstream.NegotiatedSerializer
	}
	return infos, err
}

// TestProtobufIsPreferred uses bookmarks, which have no code for protobuf, as a client that accepts
// protobuf first: whichever way the server was made, it answers in JSON.
func TestProtobufIsPreferred(t *testing.T) {
	api, err := kinds.New(example)
	if err != nil {
		t.Fatal(err)
	}
	asUpstream := testkit.API{
		Scheme: api.Scheme, Codecs: api.Codecs, NewConfig: api.NewConfig,
		New: func(c *genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer,
			error) {
			server, err := c.Complete().New("upstream", genericapiserver.NewEmptyDelegate())
			if err != nil {
				return nil, err
			}
			infos, err := groupsAsUpstream(api, c.RESTOptionsGetter)
			if err != nil {
				return nil, err
			}
			return server, server.InstallAPIGroups(infos...)
		},
	}
	beside := func(groups func(generic.RESTOptionsGetter) ([]*genericapiserver.APIGroupInfo,
		error)) testkit.Options {
		return testkit.Options{Database: testkit.Memory, Groups: []testkit.Group{{
			Scheme: api.Scheme, Codecs: api.Codecs, OpenAPI: api.OpenAPI,
			New: func(getter generic.RESTOptionsGetter) (*genericapiserver.APIGroupInfo, error) {
				infos, err := groups(getter)
				if err != nil {
					return nil, err
				}
				return infos[0], nil
			},
		}}}
	}
	for name, start := range map[string]func(*testing.T) *testkit.Server{
		"kinds": func(t *testing.T) *testkit.Server {
			_, s := start(t, testkit.Options{})
			return s
		},
		"a server of upstream's making": func(t *testing.T) *testkit.Server {
			return testkit.Start(t, asUpstream, testkit.Options{Database: testkit.Memory})
		},
		"kinds beside others": func(t *testing.T) *testkit.Server {
			return exampletest.Start(t, beside(api.GroupInfos))
		},
		"a group of upstream's making beside others": func(t *testing.T) *testkit.Server {
			return exampletest.Start(t,
				beside(func(getter generic.RESTOptionsGetter) ([]*genericapiserver.APIGroupInfo,
					error) {
					return groupsAsUpstream(api, getter)
				}))
		},
	} {
		t.Run(name, func(t *testing.T) { testProtobufIsPreferred(t, start(t)) })
	}
}

func testProtobufIsPreferred(t *testing.T, s *testkit.Server) {
	client, err := rest.HTTPClientFor(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	request := func(method, path, accept, body string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, s.Config.Host+path,
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", accept)
		r.Header.Set("Content-Type", "application/json")
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { answer.Body.Close() })
		return answer
	}
	const (
		there   = "/apis/example.com/v1/namespaces/default/bookmarks"
		older   = "/apis/example.com/v1alpha1/namespaces/default/bookmarks"
		one     = `{"apiVersion":"example.com/v1","kind":"Bookmark","metadata":{"name":"one"},"spec":{"url":"https://go.dev"}}`
		two     = `{"apiVersion":"example.com/v1","kind":"Bookmark","metadata":{"name":"two","finalizers":["example.com/wait"]},"spec":{"url":"https://go.dev"}}`
		onlyPB  = "application/vnd.kubernetes.protobuf"
		badBody = `{"apiVersion":"example.com/v1","kind":"Bookmark","metadata":{"name":"bad"},"spec":{"url":"nowhere"}}`
	)
	for _, step := range []struct {
		method, path, accept, body string
		code                       int
		want                       string // in the body
	}{
		{"GET", there, anyObject, "", 200, `"items":[]`},
		{"GET", older, anyObject, "", 200, `"items":[]`},
		{"GET", "/apis/example.com/v1/bookmarks", anyObject, "", 200, `"items":[]`},
		{"DELETE", there, anyObject, "", 200, `"items":[]`},
		{"GET", there, "application/vnd.kubernetes.protobuf, */*", "", 200, `"items":[]`},
		{"POST", there, anyObject, one, 201, `"name":"one"`},
		{"POST", there, anyObject, two, 201, `"name":"two"`},
		{"GET", there, anyObject, "", 200, `"name":"two"`},
		{"GET", there + "/one", anyObject, "", 200, `"name":"one"`},
		{"GET", older + "/one", anyObject, "", 200, `"address":"https://go.dev"`},
		{"GET", there + "/one/status", anyObject, "", 200, `"name":"one"`},
		{"PUT", there + "/one", anyObject, one, 200, `"name":"one"`},
		{"GET", there, onlyPB, "", 406, ""},
		{"GET", there + "?watch=true", onlyPB, "", 406, ""},
		// Errors.
		{"GET", there + "/none", anyObject, "", 404, `"reason":"NotFound"`},
		{"POST", there, anyObject, one, 409, `"reason":"AlreadyExists"`},
		{"POST", there, anyObject, badBody, 422, `"reason":"Invalid"`},
		// An object that is being deleted is the answer if it has finalizers.
		{"DELETE", there + "/two", anyObject, "", 200, `"deletionTimestamp"`},
		{"DELETE", there, anyObject, "", 200, `"name":"one"`},
		{"GET", there, anyObject, "", 200, `"name":"two"`},
	} {
		answer := request(step.method, step.path, step.accept, step.body) //nolint:bodyclose // request closes it when the test ends
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		if answer.StatusCode != step.code || !strings.Contains(string(body), step.want) ||
			step.code < 400 && answer.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s, which accepts %s: %s, %s: %.300q", step.method, step.path, step.accept,
				answer.Status, answer.Header.Get("Content-Type"), body)
		}
	}
	// These have code for protobuf.
	for _, path := range []string{"/apis", "/apis/example.com", "/apis/example.com/v1"} {
		answer := request("GET", path, anyObject, "") //nolint:bodyclose // request closes it when the test ends
		if answer.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, answer.Status)
		}
	}
	metadata := request("GET", there, anyMetadata, "") //nolint:bodyclose // request closes it when the test ends
	if metadata.StatusCode != http.StatusOK {
		t.Errorf("the metadata of a list: %s", metadata.Status)
	}
	events := request("GET", there+"?watch=true", anyObject, "") //nolint:bodyclose // request closes it when the test ends
	if kind := events.Header.Get("Content-Type"); events.StatusCode != http.StatusOK ||
		kind != "application/json" {
		t.Errorf("a watch: %s, %s", events.Status, kind)
	}
	if event, err := bufio.NewReader(events.Body).ReadString('\n'); !strings.Contains(event,
		`"name":"two"`) {
		t.Errorf("the first event is %q, %v", event, err)
	}
	testMetadata(t, s)
}

// testMetadata does what the controllers of namespaces and of garbage do.
func testMetadata(t *testing.T, s *testkit.Server) {
	t.Helper()
	client, err := metadataclient.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	there := client.Resource(v1.WithResource("bookmarks")).Namespace("default")
	w, err := there.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if event := <-w.ResultChan(); event.Object.(*metav1.PartialObjectMetadata).Name != "two" {
		t.Errorf("the watch says %v", event)
	}
	if err := there.Delete(t.Context(), "two", metav1.DeleteOptions{}); err != nil {
		t.Errorf("the deletion of an object with a finalizer: %v", err)
	}
	if err := there.DeleteCollection(t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		t.Errorf("the deletion of a collection: %v", err)
	}
	if list, err := there.List(t.Context(), metav1.ListOptions{}); err != nil ||
		len(list.Items) != 1 {
		t.Errorf("the metadata are %v, %v", list, err)
	}
}
