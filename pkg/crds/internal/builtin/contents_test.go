package builtin

import (
	"context"
	"errors"
	"fmt"
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
	"k8s.io/client-go/metadata"
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

// hooked are objects beside webhooks: those of the resources "converted" cannot be listed, since a
// webhook never answers. Those of "admitted" are many.
type hooked struct {
	metadata.Getter
	resource string
	remove   func() error
}

func (h hooked) Resource(r schema.GroupVersionResource) metadata.Getter {
	h.resource = r.Resource
	return h
}

func (h hooked) Namespace(string) metadata.ResourceInterface { return h }

func (h hooked) List(ctx context.Context,
	_ metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	list := &metav1.PartialObjectMetadataList{}
	switch h.resource {
	case "converted":
		<-ctx.Done()
		return nil, ctx.Err()
	case "admitted":
		for i := range contentPage {
			list.Items = append(list.Items, metav1.PartialObjectMetadata{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}})
		}
		list.Continue = "more"
	}
	return list, nil
}

func (h hooked) Delete(context.Context, string, metav1.DeleteOptions, ...string) error {
	return h.remove()
}

// terminating is a namespace that is deleted.
func terminating() *corev1.Namespace {
	now := metav1.Now()
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", UID: "uid-of-it",
		DeletionTimestamp: &now}}
}

// However many resources of a namespace hang, and however many objects they have, it says within
// seconds which they are.
func TestContentsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hookTimeout = 10 * time.Second // upstream's default
		n, deleted := terminating(), 0
		c := &NamespaceController{client: fake.NewClientset(n), metadata: hooked{
			remove: func() error {
				deleted++
				<-time.After(hookTimeout)
				return apierrors.NewInternalError(errors.New("failed calling webhook"))
			}}}
		var resources []schema.GroupVersionResource
		for i := range contentsAtOnce - 1 {
			resources = append(resources, schema.GroupVersionResource{Group: fmt.Sprint("group", i),
				Resource: "converted"})
		}
		resources = append(resources, schema.GroupVersionResource{Resource: "admitted"},
			schema.GroupVersionResource{Resource: "empty"})
		began := time.Now()
		contents := c.empty(t.Context(), resources, n)
		if took := time.Since(began); took > hookTimeout {
			t.Errorf("it took %v", took)
		}
		for i, r := range resources {
			left, err := contents[i].left, contents[i].err
			if wrong := r.Resource != "empty"; (err != nil) != wrong ||
				(left > 0) != (r.Resource == "admitted") {
				t.Errorf("%s: %d are left, %v", r, left, err)
			}
		}
		if deleted != 1 {
			t.Errorf("%d deletions were waited for", deleted)
		}
	})
}

// A restore that brings back a namespace while it is emptied loses what is deleted within moments,
// and no more.
func TestNamespaceBroughtBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, deleted := terminating(), 0
		client := fake.NewClientset(n)
		c := &NamespaceController{client: client, metadata: hooked{remove: func() error {
			if deleted++; deleted == 10 {
				active := n.DeepCopy()
				active.DeletionTimestamp = nil
				if _, err := client.CoreV1().Namespaces().Update(t.Context(), active,
					metav1.UpdateOptions{}); err != nil {
					t.Error(err)
				}
			}
			<-time.After(lookEvery / 5)
			return nil
		}}}
		contents := c.empty(t.Context(), []schema.GroupVersionResource{{Resource: "admitted"}}, n)
		if err := contents[0].err; !errors.Is(err, errLetGo) {
			t.Errorf("the namespace that was brought back: %v", err)
		}
		if deleted > 10+6 {
			t.Errorf("%d objects were deleted", deleted)
		}
	})
}
