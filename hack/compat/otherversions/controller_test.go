package otherversions

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/rowkeeper/rowkeeper/pkg/testkit/process"
)

// TestMain builds the program as a project would install it.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "otherversions-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program := filepath.Join(dir, "rowkeeper")
		build := exec.Command("go", "-C", "../../..", "build", "-o", program, "./cmd/rowkeeper")
		build.Env = append(os.Environ(), "GOWORK=") // the program is in the workspace
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "cannot build rowkeeper: %v\n%s", err, out)
			return 1
		}
		if err := os.Setenv("ROWKEEPER", program); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

var gadget = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gadget"}

func definition() *apiextensionsv1.CustomResourceDefinition {
	keep := true
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "gadgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: gadget.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gadgets",
				Singular: "gadget", Kind: gadget.Kind, ListKind: "GadgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: gadget.Version, Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{
					Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object",
						XPreserveUnknownFields: &keep}},
			}},
		},
	}
}

// reconciler makes a ConfigMap for each gadget, and says so in the gadget's status.
type reconciler struct{ client.Client }

func (r reconciler) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	var result reconcile.Result
	g := &unstructured.Unstructured{}
	g.SetGroupVersionKind(gadget)
	if err := r.Get(ctx, q.NamespacedName, g); err != nil {
		return result, client.IgnoreNotFound(err)
	}
	made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: q.Name, Namespace: q.Namespace}}
	if err := ctrl.SetControllerReference(g, made, r.Scheme()); err != nil {
		return result, err
	}
	if err := client.IgnoreAlreadyExists(r.Create(ctx, made)); err != nil {
		return result, err
	}
	if phase, _, _ := unstructured.NestedString(g.Object, "status", "phase"); phase == "Made" {
		return result, nil
	}
	if err := unstructured.SetNestedField(g.Object, "Made", "status", "phase"); err != nil {
		return result, err
	}
	return result, r.Status().Update(ctx, g)
}

// TestController: the manager of an older controller-runtime finds the definition that its envtest
// has installed, elects a leader and reconciles; and what a gadget owns goes with it.
func TestController(t *testing.T) {
	server := process.Start(t, process.Options{})
	config, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{
		CRDs: []*apiextensionsv1.CustomResourceDefinition{definition()}}); err != nil {
		t.Fatal(err)
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Metrics:        metricsserver.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionID: "gadgets", LeaderElectionNamespace: "default",
	})
	if err != nil {
		t.Fatal(err)
	}
	g := &unstructured.Unstructured{}
	g.SetGroupVersionKind(gadget)
	if err := ctrl.NewControllerManagedBy(manager).For(g).Owns(&corev1.ConfigMap{}).
		Complete(reconciler{manager.GetClient()}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g.SetName("first")
	g.SetNamespace("default")
	if err := c.Create(ctx, g); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the gadget is made", func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(g), g)
		phase, _, _ := unstructured.NestedString(g.Object, "status", "phase")
		return phase == "Made", err
	})
	made := &corev1.ConfigMap{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(g), made); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(ctx, g); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the ConfigMap is gone", func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(made), made)
		return client.IgnoreNotFound(err) == nil && err != nil, client.IgnoreNotFound(err)
	})
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds wait.ConditionWithContextFunc) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true,
		holds); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
