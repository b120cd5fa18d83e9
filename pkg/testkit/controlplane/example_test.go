package controlplane_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/rowkeeper/rowkeeper/pkg/testkit/controlplane"
)

// A test starts a control plane, which ends with the test, and makes a Deployment in it.
func ExampleStart() {
	test := func(t *testing.T, web *appsv1.Deployment) {
		plane := controlplane.Start(t, controlplane.Options{})
		client := kubernetes.NewForConfigOrDie(plane.Config)
		deployments := client.AppsV1().Deployments("default")
		if _, err := deployments.Create(t.Context(), web, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	_ = test // the test of a project
}

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
