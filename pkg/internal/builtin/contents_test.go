package builtin

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
)

// A namespace that is Terminating, and that nobody has to finalize any more, is ended, as it was
// seen; one that somebody has to finalize is left to him.
func TestTerminatingWithoutFinalizers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := metav1.Now()
		namespace := func(name string, finalizers ...corev1.FinalizerName) *corev1.Namespace {
			return &corev1.Namespace{
				ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-of-it", ResourceVersion: "7",
					DeletionTimestamp: &now},
				Spec:   corev1.NamespaceSpec{Finalizers: finalizers},
				Status: corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating},
			}
		}
		client := fake.NewClientset(namespace("left"), namespace("others", "example.com/waits"))
		var preconditions []*metav1.Preconditions
		conflicts := 1
		client.PrependReactor("delete", "namespaces",
			func(a clienttesting.Action) (bool, runtime.Object, error) {
				preconditions = append(preconditions,
					a.(clienttesting.DeleteActionImpl).DeleteOptions.Preconditions)
				if conflicts > 0 {
					conflicts--
					return true, nil, apierrors.NewConflict(corev1.Resource("namespaces"),
						"left", nil)
				}
				return false, nil, nil
			})
		ctx, cancel := context.WithCancel(t.Context())
		factory := informers.NewSharedInformerFactory(client, 0)
		scheme := metadatafake.NewTestScheme()
		if err := metav1.AddMetaToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		nothing := func(context.Context, string) ([]schema.GroupResource, error) { return nil, nil }
		controller, err := NewNamespaceController(client,
			metadatafake.NewSimpleMetadataClient(scheme), factory.Core().V1().Namespaces(),
			nothing, func(string) bool { return true }, 0)
		if err != nil {
			t.Fatal(err)
		}
		factory.StartWithContext(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			controller.Run(ctx)
		}()
		for { // in fake time: the second attempt comes after firstRetry
			list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(list.Items) == 1 {
				if list.Items[0].Name != "others" {
					t.Errorf("%s is left", list.Items[0].Name)
				}
				break
			}
			<-time.After(firstRetry)
		}
		cancel()
		<-ended
		factory.Shutdown()
		if len(preconditions) != 2 {
			t.Fatalf("deleted %d times, not twice, since the first attempt was a conflict",
				len(preconditions))
		}
		for _, p := range preconditions {
			if p == nil || *p.UID != "uid-of-it" || *p.ResourceVersion != "7" {
				t.Errorf("the preconditions are %v", p)
			}
		}
	})
}
