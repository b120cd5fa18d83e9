package exampletest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/generated/clientset/versioned"
	typedciv1 "github.com/rowkeeper/rowkeeper/pkg/example/generated/clientset/versioned/typed/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// ciClient starts a server that has the pipeline build, which has two parameters.
func ciClient(t *testing.T) typedciv1.CiV1Interface {
	t.Helper()
	s := Start(t, testkit.Options{})
	config := rest.CopyConfig(s.Config)
	config.UserAgent = "tester/1.0"
	client, err := versioned.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CiV1().Pipelines("default").Create(t.Context(), &civ1.Pipeline{
		ObjectMeta: metav1.ObjectMeta{Name: "build"},
		Spec: civ1.PipelineSpec{
			Image: "golang:1.26", Parameters: []civ1.Parameter{{Name: "REVISION"},
				{Name: "LEVEL", Default: new("info")}},
			Steps: []civ1.Step{{Name: "test", Command: []string{"make"}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return client.CiV1()
}

func directRun(name, pipeline string, values ...string) *civ1.PipelineRun {
	r := &civ1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: civ1.PipelineRunSpec{PipelineName: pipeline}}
	for _, v := range values {
		r.Spec.Parameters = append(r.Spec.Parameters, civ1.ParameterValue{Name: v, Value: "x"})
	}
	return r
}

// A run that is created directly is checked as one that is asked for by the subresource.
func TestParametersOfARunThatIsCreatedDirectly(t *testing.T) {
	runs := ciClient(t).PipelineRuns("default")
	for want, r := range map[string]*civ1.PipelineRun{
		"spec.parameters: Required value: the pipeline's parameter REVISION has no default":          directRun("a", "build"),
		`spec.parameters[1].name: Unsupported value: "OTHER": supported values: "LEVEL", "REVISION"`: directRun("a", "build", "REVISION", "OTHER"),
	} {
		if _, err := runs.Create(t.Context(), r,
			metav1.CreateOptions{}); !apierrors.IsInvalid(err) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	// Its controller says that a run has no pipeline.
	for _, r := range []*civ1.PipelineRun{directRun("a", "build", "REVISION"),
		directRun("b", "build", "LEVEL", "REVISION"), directRun("c", "missing", "ANY")} {
		if _, err := runs.Create(t.Context(), r, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	}
}

// A client that asks for a run manages its fields. Only by a request that says nothing they are not
// known.
func TestManagedFieldsOfARunThatIsAskedFor(t *testing.T) {
	client := ciClient(t)
	p, err := client.Pipelines("default").Get(t.Context(), "build", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.ObjectMeta = metav1.ObjectMeta{Name: "free"}
	p.Spec.Parameters = nil
	if _, err := client.Pipelines("default").Create(t.Context(), p,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ask := func(pipeline, query, spec string) *civ1.PipelineRun {
		t.Helper()
		run := &civ1.PipelineRun{}
		err := client.RESTClient().Post().AbsPath("/apis/ci.rowkeeper.dev/v1/namespaces/default/pipelines/"+pipeline+"/run").Param("fieldManager", query).
			SetHeader("Content-Type", "application/json").
			Body([]byte(`{"apiVersion":"ci.rowkeeper.dev/v1","kind":"PipelineRunRequest","spec":` +
				spec + `}`)).Do(t.Context()).Into(run)
		if err != nil {
			t.Fatal(err)
		}
		return run
	}
	for _, c := range []struct{ pipeline, query, spec, manager, field string }{
		{"build", "", `{"branch":"main","parameters":[{"name":"REVISION","value":"a"}]}`, "tester",
			`"f:branch"`},
		{"build", "mine", `{"branch":"main","parameters":[{"name":"REVISION","value":"a"}]}`,
			"mine", `"k:{\"name\":\"REVISION\"}"`},
		{"free", "", `{}`, "unknown", `"f:pipelineName"`},
	} {
		managed := ask(c.pipeline, c.query, c.spec).ManagedFields
		if len(managed) != 1 {
			t.Errorf("the managers are %v", managed)
			continue
		}
		m := managed[0]
		if m.Manager != c.manager || m.Operation != metav1.ManagedFieldsOperationUpdate ||
			m.APIVersion != "ci.rowkeeper.dev/v1" ||
			m.Subresource != "" || m.Time == nil ||
			!strings.Contains(m.FieldsV1.GetRawString(), c.field) {
			t.Errorf("managed is %v, want the manager %q of %s", m, c.manager, c.field)
		}
	}
}

// The subresource runs selects as any list does.
func TestSelectorsOfPipelineRuns(t *testing.T) {
	client := ciClient(t)
	for _, name := range []string{"a", "b", "c"} {
		r := directRun(name, "build", "REVISION")
		r.Labels, r.Spec.Branch = map[string]string{"team": name, "all": "yes"}, "of-"+name
		if _, err := client.PipelineRuns("default").Create(t.Context(), r,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	list := func(query ...string) (*civ1.PipelineRunList, error) {
		request := client.RESTClient().Get().AbsPath("/apis/ci.rowkeeper.dev/v1/namespaces/default/pipelines/build/runs")
		for i := 0; i < len(query); i += 2 {
			request.Param(query[i], query[i+1])
		}
		l := &civ1.PipelineRunList{}
		return l, request.Do(t.Context()).Into(l)
	}
	for _, c := range []struct{ query, want []string }{
		{nil, []string{"a", "b", "c"}},
		{[]string{"labelSelector", "team=b"}, []string{"b"}},
		{[]string{"labelSelector", "team in (a,c)"}, []string{"a", "c"}},
		{[]string{"labelSelector", "all=yes,team!=a", "limit", "1"}, []string{"b"}},
		{[]string{"labelSelector", "all=yes", "branch", "of-c"}, []string{"c"}},
		{[]string{"fieldSelector", "metadata.name!=a"}, []string{"b", "c"}},
		{[]string{"fieldSelector", "spec.branch=of-b,status.phase=Pending"}, []string{"b"}},
		{[]string{"fieldSelector", "spec.pipelineName=other"}, nil},
	} {
		l, err := list(c.query...)
		if err != nil {
			t.Errorf("%q: %v", c.query, err)
			continue
		}
		var got []string
		for _, r := range l.Items {
			got = append(got, r.Name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%q: got %q, want %q", c.query, got, c.want)
		}
	}
	for query, want := range map[string]string{"labelSelector": "labelSelector: ",
		"fieldSelector": "fieldSelector: "} {
		if _, err := list(query, "a=b=("); !apierrors.IsBadRequest(err) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", query, err, want)
		}
	}
	if _, err := list("fieldSelector", "spec.other=x"); !apierrors.IsBadRequest(err) ||
		!strings.Contains(err.Error(), `"spec.other" is not supported`) {
		t.Errorf("got %v", err)
	}
}

// Every piece of a log that is accepted is shown, also pieces that have the same sequence number,
// or come late.
func TestPiecesOfALogWithTheSameSequence(t *testing.T) {
	client := ciClient(t)
	run, err := client.PipelineRuns("default").Create(t.Context(),
		directRun("a", "build", "REVISION"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, sequence int64) {
		t.Helper()
		_, err := client.LogChunks("default").Create(t.Context(), &civ1.LogChunk{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: civ1.LogChunkSpec{RunName: run.Name, RunUID: run.UID, Sequence: sequence,
				Lines: []string{fmt.Sprintf("%s %d", name, sequence)}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	write("b", 0)
	write("c", 1)
	stream, err := client.PipelineRuns("default").GetLogs("a",
		&civ1.PipelineRunLogOptions{Follow: true}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	next := func(want string) {
		t.Helper()
		line := make([]byte, len(want)+1)
		for n := 0; n < len(line); {
			m, err := stream.Read(line[n:])
			if err != nil {
				t.Fatal(err)
			}
			n += m
		}
		if string(line) != want+"\n" {
			t.Errorf("followed is %q, want %q", line, want)
		}
	}
	next("b 0")
	next("c 1")
	write("d", 1)
	next("d 1")
	write("a", 0)
	next("a 0")
	log, err := client.PipelineRuns("default").GetLogs("a",
		&civ1.PipelineRunLogOptions{}).DoRaw(t.Context())
	if want := "a 0\nb 0\nc 1\nd 1\n"; err != nil || string(log) != want {
		t.Errorf("the log is %q, %v, want %q", log, err, want)
	}
}
