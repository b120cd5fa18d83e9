package containers

import (
	"os"
	"strings"
	"testing"

	"github.com/testcontainers/testcontainers-go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	civ1 "github.com/rowkeeper/rowkeeper/pkg/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/pkg/testkit/rowkeepertest"
)

// TestContainers needs an image for each kind, named by the variables that all tests of databases use.
func TestContainers(t *testing.T) {
	for kind, start := range map[string]func(testing.TB, string, ...testcontainers.ContainerCustomizer) testkit.Database{
		"postgres": Postgres, "mariadb": MariaDB, "mysql": MySQL,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			env := "ROWKEEPER_TEST_" + strings.ToUpper(kind) + "_IMAGE"
			image := os.Getenv(env)
			if image == "" {
				t.Skipf("%s names no image to start", env)
			}
			database := start(t, image)
			for range 2 { // two servers on one database
				s := rowkeepertest.Start(t, testkit.Options{Database: database})
				pipelines := dynamic.NewForConfigOrDie(s.Config).Resource(civ1.SchemeGroupVersion.WithResource("pipelines")).Namespace("default")
				_, err := pipelines.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": civ1.SchemeGroupVersion.String(), "kind": "Pipeline", "metadata": map[string]any{"name": "a"},
					"spec": map[string]any{"steps": []any{map[string]any{"name": "build", "image": "golang", "command": []any{"go", "build"}}}},
				}}, metav1.CreateOptions{})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
}
