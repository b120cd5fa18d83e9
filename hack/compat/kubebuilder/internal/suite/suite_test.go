// Package suite tests the project: everything runs in this process, the API server included.
package suite

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/go-logr/logr"
	"github.com/rowkeeper/rowkeeper/pkg/crds/crdstest"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"

	v1 "github.com/rowkeeper/rowkeeper/hack/compat/kubebuilder/api/v1"
	"github.com/rowkeeper/rowkeeper/hack/compat/kubebuilder/internal/controller"
	greetingwebhook "github.com/rowkeeper/rowkeeper/hack/compat/kubebuilder/internal/webhook"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// start starts the API server, with the project's definitions and webhooks installed, and its
// manager, and returns a client.
func start(t *testing.T) client.Client {
	began := time.Now()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	api := crdstest.Start(t, testkit.Options{})
	environment := &envtest.Environment{
		UseExistingCluster:    ptr.To(true),
		Config:                api.Config,
		CRDDirectoryPaths:     []string{"../../config/crd/bases"},
		ErrorIfCRDPathMissing: true,
		WebhookInstallOptions: envtest.WebhookInstallOptions{Paths: []string{"../../config/webhook"}},
	}
	config, err := environment.Start()
	if err != nil {
		t.Fatal(err)
	}
	hooks := environment.WebhookInstallOptions
	m, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Metrics: server.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{
			Host: hooks.LocalServingHost, Port: hooks.LocalServingPort,
			CertDir: hooks.LocalServingCertDir,
		}),
		LeaderElection: true, LeaderElectionID: "greeter", LeaderElectionNamespace: "default",
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, setup := range []func(ctrl.Manager) error{controller.Setup, greetingwebhook.Setup} {
		if err := setup(m); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- m.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		if err := environment.Stop(); err != nil {
			t.Error(err)
		}
	})
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the webhooks answer", func(context.Context) (bool, error) {
		return m.GetWebhookServer().StartedChecker()(nil) == nil, nil
	})
	t.Logf("server, definitions, webhooks and manager were ready after %s",
		time.Since(began).Round(time.Millisecond))
	return c
}

func eventually(t testing.TB, what string, ok wait.ConditionWithContextFunc) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true,
		ok); err != nil {
		t.Fatalf("waited in vain: %s: %v", what, err)
	}
}

func greeting(name string, spec v1.GreetingSpec) *v1.Greeting {
	return &v1.Greeting{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: spec}
}

func TestGreetings(t *testing.T) {
	c := start(t)
	ctx := t.Context()

	t.Run("the schema and the webhook fill in", func(t *testing.T) {
		for name, want := range map[string]v1.GreetingSpec{
			"plain":     {Whom: "Ada", Language: "en", Times: 1},
			"important": {Whom: "Ada", Language: "en", Times: 2, Important: true},
		} {
			g := greeting(name, v1.GreetingSpec{Whom: "Ada", Important: want.Important})
			if err := c.Create(ctx, g); err != nil {
				t.Fatal(err)
			}
			if g.Spec != want {
				t.Errorf("got %+v, want %+v", g.Spec, want)
			}
		}
	})

	t.Run("the schema, the webhook and CEL refuse", func(t *testing.T) {
		for want, g := range map[string]*v1.Greeting{
			`spec.language: Unsupported value: "la"`:                                                            greeting("bad", v1.GreetingSpec{Whom: "Ada", Language: "la"}),
			`admission webhook "vgreeting.greet.example.com" denied the request: there is Nobody to be greeted`: greeting("bad", v1.GreetingSpec{Whom: "Nobody"}),
		} {
			if err := c.Create(ctx, g); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
		}
		g := &v1.Greeting{}
		if err := c.Get(ctx, client.ObjectKey{Namespace: "default", Name: "important"},
			g); err != nil {
			t.Fatal(err)
		}
		before := g.DeepCopy()
		g.Spec.Important = false
		if err := c.Patch(ctx, g, client.RawPatch("application/merge-patch+json",
			[]byte(`{"spec":{"important":false}}`))); err == nil ||
			!strings.Contains(err.Error(), "who is important stays important") {
			t.Errorf("got %v for %+v", err, before.Spec)
		}
	})

	t.Run("the controller greets", func(t *testing.T) {
		g := greeting("greeted", v1.GreetingSpec{Whom: "Grace", Language: "fr", Times: 2})
		if err := c.Create(ctx, g); err != nil {
			t.Fatal(err)
		}
		text := func(want string) {
			t.Helper()
			eventually(t, "the text is "+want, func(ctx context.Context) (bool, error) {
				err := c.Get(ctx, client.ObjectKeyFromObject(g), g)
				return err == nil && g.Status.Text == want &&
					g.Status.ObservedGeneration == g.Generation, err
			})
			written := &corev1.ConfigMap{}
			if err := c.Get(ctx, client.ObjectKeyFromObject(g), written); err != nil ||
				written.Data["text"] != want || !metav1.IsControlledBy(written, g) {
				t.Errorf("got %v of %v: %v", written.Data, written.OwnerReferences, err)
			}
		}
		text("Bonjour, Grace! Bonjour, Grace!")
		eventually(t, "an update", func(ctx context.Context) (bool, error) {
			if err := c.Get(ctx, client.ObjectKeyFromObject(g), g); err != nil {
				return false, err
			}
			g.Spec.Language = "de"
			err := c.Update(ctx, g)
			return err == nil, client.IgnoreNotFound(ignoreConflict(err))
		})
		text("Hallo, Grace! Hallo, Grace!")
		// A child that somebody else removes is put back.
		if err := c.Delete(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: g.Name,
			Namespace: g.Namespace}}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the ConfigMap is back", func(ctx context.Context) (bool, error) {
			err := c.Get(ctx, client.ObjectKeyFromObject(g), &corev1.ConfigMap{})
			return err == nil, client.IgnoreNotFound(err)
		})
		eventually(t, "the event", func(ctx context.Context) (bool, error) {
			var list eventsv1.EventList
			err := c.List(ctx, &list, client.InNamespace("default"))
			for _, e := range list.Items {
				if e.Regarding.Name == g.Name && e.Reason == "Greeted" &&
					e.Note == "Grace was greeted" {
					return true, nil
				}
			}
			return false, err
		})
		var french v1.GreetingList
		if err := c.List(ctx, &french, client.InNamespace("default"),
			client.MatchingFields{"spec.language": "de"}); err != nil || len(french.Items) != 1 {
			t.Errorf("%d greetings are in German: %v", len(french.Items), err)
		}
	})

	t.Run("a namespace takes what is in it along", func(t *testing.T) {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "team-"}}
		if err := c.Create(ctx, n); err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			g := greeting(fmt.Sprint("g", i), v1.GreetingSpec{Whom: "Ada"})
			g.Namespace = n.Name
			if err := c.Create(ctx, g); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Delete(ctx, n); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the namespace is gone", func(ctx context.Context) (bool, error) {
			err := c.Get(ctx, client.ObjectKeyFromObject(n), n)
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		})
		var left v1.GreetingList
		if err := c.List(ctx, &left, client.InNamespace(n.Name)); err != nil ||
			len(left.Items) > 0 {
			t.Errorf("%d are left: %v", len(left.Items), err)
		}
	})
}

func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}
