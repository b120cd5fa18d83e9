package databases

import (
	"os"
	"strings"
	"testing"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/exampletest"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// TestContainers runs wherever a Docker engine has the images.
func TestContainers(t *testing.T) {
	// The kit removes its containers by itself, and the reaper's image need not be there.
	t.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	docker := engine(t)
	for name, kind := range map[string]struct {
		image string
		start func(testing.TB, string, ...testcontainers.ContainerCustomizer) testkit.Database
	}{
		"postgres": {"postgres:17", Postgres}, "mariadb": {"mariadb:11.8", MariaDB},
		"mysql": {"mysql:9.7", MySQL},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := kind.start(t, present(t, docker, name, kind.image))
			for range 2 { // two servers on one database
				s := exampletest.Start(t, testkit.Options{Database: database})
				pipelines := dynamic.NewForConfigOrDie(s.Config).Resource(civ1.SchemeGroupVersion.WithResource("pipelines")).Namespace("default")
				_, err := pipelines.Create(t.Context(),
					&unstructured.Unstructured{Object: map[string]any{
						"apiVersion": civ1.SchemeGroupVersion.String(), "kind": "Pipeline",
						"metadata": map[string]any{"name": "a"},
						"spec": map[string]any{"steps": []any{map[string]any{"name": "build",
							"image": "golang", "command": []any{"go", "build"}}}},
					}}, metav1.CreateOptions{})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// engine returns a client of the Docker engine, and skips the test if there is none.
func engine(t *testing.T) client.APIClient {
	t.Helper()
	if os.Getenv("ROWKEEPER_TEST_SOURCE") == "local" {
		t.Skip("ROWKEEPER_TEST_SOURCE wants no containers")
	}
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		t.Skipf("no Docker engine answers: %v", err)
	}
	t.Cleanup(func() {
		if err := provider.Close(); err != nil {
			t.Error(err)
		}
	})
	return provider.Client()
}

// present returns the image that the variable of all tests of databases names, or else the one that
// hack/testbed builds, or the official one. It skips the test if none of them is there.
func present(t *testing.T, docker client.APIClient, kind, image string) string {
	t.Helper()
	env := "ROWKEEPER_TEST_" + strings.ToUpper(kind) + "_IMAGE"
	if named := os.Getenv(env); named != "" {
		return named
	}
	for _, name := range []string{"localhost/rowkeeper/" + image, image} {
		if _, err := docker.ImageInspect(t.Context(), name); err == nil {
			return name
		}
	}
	t.Skipf("the Docker engine has no image %s, and %s names none", image, env)
	return ""
}
