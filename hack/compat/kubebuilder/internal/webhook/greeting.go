// Package webhook defaults and validates Greetings.
package webhook

import (
	"context"
	"fmt"
	"strings"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/rowkeeper/rowkeeper/hack/compat/kubebuilder/api/v1"
)

// Setup registers the webhooks.
func Setup(m ctrl.Manager) error {
	return ctrl.NewWebhookManagedBy(m,
		&v1.Greeting{}).WithDefaulter(greetings{}).WithValidator(greetings{}).Complete()
}

// +kubebuilder:webhook:path=/mutate-greet-example-com-v1-greeting,mutating=true,failurePolicy=fail,sideEffects=None,groups=greet.example.com,resources=greetings,verbs=create;update,versions=v1,name=mgreeting.greet.example.com,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/validate-greet-example-com-v1-greeting,mutating=false,failurePolicy=fail,sideEffects=None,groups=greet.example.com,resources=greetings,verbs=create;update,versions=v1,name=vgreeting.greet.example.com,admissionReviewVersions=v1

type greetings struct{}

func (greetings) Default(_ context.Context, g *v1.Greeting) error {
	if g.Spec.Times == 0 {
		g.Spec.Times = 1
		if g.Spec.Important {
			g.Spec.Times = 2
		}
	}
	return nil
}

func (greetings) ValidateCreate(_ context.Context, g *v1.Greeting) (admission.Warnings, error) {
	return check(g)
}

func (greetings) ValidateUpdate(_ context.Context, _, g *v1.Greeting) (admission.Warnings, error) {
	return check(g)
}

func (greetings) ValidateDelete(context.Context, *v1.Greeting) (admission.Warnings, error) {
	return nil, nil
}

func check(g *v1.Greeting) (admission.Warnings, error) {
	if strings.EqualFold(g.Spec.Whom, "nobody") {
		return nil, fmt.Errorf("there is %s to be greeted", g.Spec.Whom)
	}
	return nil, nil
}
