package controlplane_test

import (
	"context"
	"fmt"
	"log"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/rowkeeper/rowkeeper/pkg/testkit/controlplane"
)

// A program without a test at hand starts a control plane, uses it, and stops it. Its output is not
// compared, since the programs of Kubernetes are not on every machine.
func ExampleLaunch() {
	ctx := context.Background()
	plane, err := controlplane.Launch(ctx, controlplane.Options{})
	if err != nil {
		log.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(plane.Config)
	namespaces, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(namespaces.Items))
	if err := plane.Stop(); err != nil {
		log.Fatal(err)
	}
}
