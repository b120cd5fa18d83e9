package kinds_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/client-go/discovery"

	"github.com/rowkeeper/rowkeeper/pkg/kinds"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/kubectl"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// Robot does what its author did not want.
type Robot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   RobotSpec    `json:"spec,omitempty"`
	Status *RobotStatus `json:"status,omitempty"`
}

// RobotSpec says where it fails.
type RobotSpec struct {
	Fails   string   `json:"fails,omitempty"`
	Tool    *string  `json:"tool,omitempty"`
	Luggage any      `json:"luggage,omitempty"`
	Words   []string `json:"words"`
}

// RobotStatus is one that is a pointer.
type RobotStatus struct {
	Broken string `json:"broken,omitempty"`
}

// DeepCopyObject makes it an object.
func (r *Robot) DeepCopyObject() runtime.Object { return kinds.DeepCopy(r) }

// RobotV2 has another form.
type RobotV2 struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Fails string `json:"fails,omitempty"`
}

// DeepCopyObject makes it one, too.
func (r *RobotV2) DeepCopyObject() runtime.Object { return kinds.DeepCopy(r) }

var robots = kinds.Group{Name: "example.com", Versions: []string{"v1", "v2", "v3"},
	Kinds: []kinds.Definition{kinds.Define(kinds.Kind[Robot]{
		Versions: []kinds.Version[Robot]{kinds.Converted("v2",
			func(in *RobotV2, out *Robot) error {
				switch out.Spec.Fails = in.Fails; in.Fails {
				case "from":
					return errors.New("no robot fails here")
				case "panic from":
					panic("here")
				}
				return nil
			},
			func(in *Robot, out *RobotV2) error {
				switch out.Fails = in.Spec.Fails; in.Spec.Fails {
				case "to":
					return errors.New("no robot fails there")
				case "panic to":
					panic("there")
				}
				return nil
			},
		)},
		Strategy: kinds.Strategy[Robot]{
			PrepareForCreate: func(_ context.Context, r *Robot) { panicFor(r, "panic create") },
			PrepareForUpdate: func(_ context.Context, r, _ *Robot) { panicFor(r, "panic update") },
			Validate: func(_ context.Context, r *Robot) field.ErrorList {
				panicFor(r, "panic validate")
				return nil
			},
			ValidateStatus: func(_ context.Context, r, _ *Robot) field.ErrorList {
				panicFor(r, "panic status")
				return nil
			},
			Warnings: func(_ context.Context, r *Robot) []string {
				panicFor(r, "panic warnings")
				return nil
			},
		},
		Columns: []kinds.Column[Robot]{
			{Name: "Tool", Value: func(r *Robot) any {
				panicFor(r, "panic column")
				return r.Spec.Tool
			}},
		},
		Fields: map[string]func(*Robot) string{"spec.tool": func(r *Robot) string {
			if r.Spec.Fails == "panic field" {
				return *r.Spec.Tool
			}
			return ""
		}},
	})}}

func panicFor(r *Robot, where string) {
	if r.Spec.Fails == where {
		panic("the robot fails")
	}
}

// TestFailingFunctions calls functions of an author that fail. Each time the client is told so in a
// sentence, and the server goes on.
func TestFailingFunctions(t *testing.T) {
	api, err := kinds.New(robots)
	if err != nil {
		t.Fatal(err)
	}
	s := testkit.Start(t, testkit.API{Scheme: api.Scheme, Codecs: api.Codecs,
		NewConfig: api.NewConfig, New: api.New}, testkit.Options{Database: testkit.Memory})
	kubeconfig := s.Kubeconfig(s.Config)
	v1 := func(fails string) string {
		return `{"apiVersion": "example.com/v1", "kind": "Robot", "metadata": {"name": "one"}, "spec": {"fails": "` + fails + `"}}`
	}
	v2 := func(fails string) string {
		return `{"apiVersion": "example.com/v2", "kind": "Robot", "metadata": {"name": "one"}, "fails": "` + fails + `"}`
	}
	panicked := "Internal error occurred: a function of the resource robots.example.com has " +
		"panicked, where is in the server's log: "
	for i, step := range []struct {
		args, stdin, want string
		fails             bool
	}{
		{"create -f -", v1("panic create"), panicked + "the robot fails", true},
		{"create -f -", v1("panic validate"), panicked + "the robot fails", true},
		{"create -f -", v1("panic warnings"), panicked + "the robot fails", true},
		{"create -f -", v1("panic field"), panicked + "runtime error: invalid memory address",
			true},
		{"create -f -", v2("from"), "no robot fails here", true},
		{"create -f -", v2("panic from"), "the conversion from or to version v2 has panicked, " +
			"where is in the server's log: here", true},
		{"get robots", "", "No resources found", false},
		{"create -f -", v1("panic column"), "created", false},
		{"get robots", "", panicked + "the robot fails", true},
		{"patch robot one --type merge -p", `{"spec": {"fails": "panic update"}}`, panicked +
			"the robot fails", true},
		{"patch robot one --type merge -p", `{"spec": {"fails": "panic field"}}`, panicked +
			"runtime error: invalid memory address", true},
		{"patch robot one --type merge -p", `{"spec": {"fails": "panic status"}}`,
			"patched", false},
		{"patch robot one --subresource status --type merge -p", `{"status": {"broken": "arm"}}`,
			panicked + "the robot fails", true},
		{"patch robot one --type merge -p", `{"spec": {"fails": "to"}}`, "patched", false},
		{"get robots.v2.example.com one -o yaml", "", "no robot fails there", true},
		{"get robots.v2.example.com -o yaml", "", "no robot fails there", true},
		{"get robots.v1.example.com one -o jsonpath={.spec.fails}", "", "to", false},
		{"patch robot one --type merge -p", `{"spec": {"fails": "panic to"}}`, "patched", false},
		{"get robots.v2.example.com one -o yaml", "", "the conversion from or to version v2 has " +
			"panicked, where is in the server's log: there", true},
		{"patch robot one --type merge -p",
			`{"spec": {"fails": "nowhere", "tool": "hammer", "luggage": {"a": [1, "b"]}}}`,
			"patched", false},
		{"patch robot one --subresource status --type merge -p", `{"status": {"broken": "arm"}}`,
			"patched", false},
		// The column shows what the pointer leads to.
		{"get robots", "", "NAME TOOL AGE\none hammer ", false},
		// The preferred version is served.
		{"get robots one -o jsonpath={.apiVersion},{.status.broken},{.spec.luggage.a[1]}", "",
			"example.com/v1,arm,b", false},
		{"explain robots.spec", "", "luggage <Object>\nAny value.", false},
		{"delete robot one", "", "deleted", false},
		{"get --raw /readyz", "", "ok", false},
	} {
		args := strings.Fields(step.args)
		if args[len(args)-1] == "-p" {
			args = append(args, step.stdin)
		}
		out, err := kubectl.Run(t, kubeconfig, step.stdin, args...)
		if (err != nil) != step.fails || !strings.Contains(out, step.want) {
			t.Errorf("step %d: kubectl %s %s: %v\n%s", i, step.args, step.stdin, err, out)
		}
	}
}

// TestPreferredVersion is the one that the group names first, whatever the versions are called.
func TestPreferredVersion(t *testing.T) {
	client := discovery.NewDiscoveryClientForConfigOrDie(serve(t, robots).Config)
	preferred(t, client)
	preferred(t, client.WithLegacy())
}

// preferred wants v1 to be the preferred version, and the others to follow it.
func preferred(t *testing.T, client discovery.DiscoveryInterface) {
	t.Helper()
	groups, err := client.ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(groups.Groups, func(g metav1.APIGroup) bool {
		return g.Name == "example.com"
	})
	if i < 0 {
		t.Fatalf("the group is not served: %v", groups)
	}
	var versions []string
	for _, v := range groups.Groups[i].Versions {
		versions = append(versions, v.Version)
	}
	if is := groups.Groups[i].PreferredVersion.Version; is != "v1" ||
		strings.Join(versions, " ") != "v1 v2 v3" {
		t.Errorf("%T prefers %s of %v", client, is, versions)
	}
}

// TestStoreThatCannotBe breaks the registry by the last function before it is used.
func TestStoreThatCannotBe(t *testing.T) {
	api, err := kinds.New(kinds.Group{Name: "example.com", Versions: []string{"v1"},
		Kinds: []kinds.Definition{
			kinds.Define(kinds.Kind[Planet]{Store: func(s *genericregistry.Store) {
				s.CreateStrategy = nil
			}}),
		}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = api.GroupInfos(nil)
	if err == nil || !strings.Contains(err.Error(), "cannot store planets.example.com: ") {
		t.Errorf("the error is %v", err)
	}
}
