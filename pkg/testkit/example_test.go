package testkit_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/dynamic"

	"github.com/rowkeeper/rowkeeper/pkg/example/apiserver"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// runsExample makes this test program run ExampleStart, which ends it as go test would.
const runsExample = "TESTKIT_TEST_RUNS_EXAMPLE"

func TestMain(m *testing.M) {
	if os.Getenv(runsExample) != "" {
		ExampleStart()
	}
	os.Exit(m.Run())
}

// TestExample runs the example's test.
func TestExample(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v")
	cmd.Env = append(os.Environ(), runsExample+"=1")
	if out, err := cmd.CombinedOutput(); err != nil ||
		!strings.Contains(string(out), "--- PASS: TestPipelines") {
		t.Errorf("the example: %v\n%s", err, out)
	}
}

// A test starts the API server of its author and talks to it.
func ExampleStart() {
	test := func(t *testing.T) {
		server := testkit.Start(t, testkit.API{
			Scheme: apiserver.Scheme,
			Codecs: apiserver.Codecs,
			NewConfig: func() *genericapiserver.RecommendedConfig {
				return apiserver.NewConfig().Generic
			},
			New: func(c *genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer,
				error) {
				return (&apiserver.Config{Generic: c}).New()
			},
		}, testkit.Options{Database: testkit.Memory})
		client, err := dynamic.NewForConfig(server.Config)
		if err != nil {
			t.Fatal(err)
		}
		empty := server.Snapshot()
		t.Cleanup(func() { server.Rollback(empty) })
		_,
			err = client.Resource(apiserver.Scheme.PrioritizedVersionsForGroup("ci.rowkeeper.dev")[0].WithResource("pipelines")).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	matches := func(pattern, name string) (bool, error) {
		return strings.Contains(name, pattern), nil
	}
	// what go test does
	testing.Main(matches, []testing.InternalTest{{Name: "TestPipelines", F: test}}, nil, nil)
}
