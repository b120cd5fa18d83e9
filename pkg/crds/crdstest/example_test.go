package crdstest_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/rowkeeper/rowkeeper/pkg/crds/crdstest"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// A test has an API server of its own.
func TestMine(t *testing.T) {
	api := crdstest.Start(t, testkit.Options{}) // stops with the test
	client := kubernetes.NewForConfigOrDie(api.Config)
	_, err := client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// Programs that have no test at hand start a server by Launch.
func ExampleLaunch() {
	ctx := context.Background()
	api, err := crdstest.Launch(ctx, testkit.Options{Database: testkit.Memory})
	if err != nil {
		log.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(api.Config)
	namespace, err := client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("there is a namespace", namespace.Name)
	if err := api.Stop(); err != nil {
		log.Fatal(err)
	}
	// Output: there is a namespace default
}
