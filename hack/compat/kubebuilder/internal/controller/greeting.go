// Package controller writes Greetings into ConfigMaps.
package controller

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/rowkeeper/rowkeeper/hack/compat/kubebuilder/api/v1"
)

// Reconciler writes each Greeting into a ConfigMap of its name, and what it has written into the
// status.
type Reconciler struct {
	client.Client
	Recorder events.EventRecorder
}

// Setup registers the controller.
func Setup(m ctrl.Manager) error {
	r := &Reconciler{Client: m.GetClient(), Recorder: m.GetEventRecorder("greeter")}
	return ctrl.NewControllerManagedBy(m).For(&v1.Greeting{}).Owns(&corev1.ConfigMap{}).Complete(r)
}

var hello = map[string]string{"en": "Hello", "de": "Hallo", "fr": "Bonjour"}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var g v1.Greeting
	if err := r.Get(ctx, request.NamespacedName, &g); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !g.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	text := strings.TrimSpace(strings.Repeat(fmt.Sprintf("%s, %s! ", hello[g.Spec.Language],
		g.Spec.Whom), int(g.Spec.Times)))
	written := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: g.Name,
		Namespace: g.Namespace}}
	result, err := controllerutil.CreateOrUpdate(ctx, r.Client, written, func() error {
		written.Data = map[string]string{"text": text}
		return controllerutil.SetControllerReference(&g, written, r.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	if result != controllerutil.OperationResultNone {
		r.Recorder.Eventf(&g, written, corev1.EventTypeNormal, "Greeted", "Greet", "%s was greeted",
			g.Spec.Whom)
	}
	if g.Status.Text == text && g.Status.ObservedGeneration == g.Generation {
		return ctrl.Result{}, nil
	}
	g.Status = v1.GreetingStatus{ObservedGeneration: g.Generation, Text: text}
	return ctrl.Result{}, r.Status().Update(ctx, &g)
}
