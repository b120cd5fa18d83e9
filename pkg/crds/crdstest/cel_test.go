package crdstest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/rowkeeper/rowkeeper/pkg/crds/crdstest"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// An expression whose cost is acceptable for the sizes that are expected, and too high for an
// object, refuses the object with kube-apiserver's words.
func TestCostlyExpression(t *testing.T) {
	s := crdstest.Start(t, testkit.Options{})
	define(t, s, "example.com")
	client := apiextensions.NewForConfigOrDie(s.Config).ApiextensionsV1().CustomResourceDefinitions()
	d, err := client.Get(t.Context(), "gadgets.example.com", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d.Spec.Versions[0].Schema.OpenAPIV3Schema = &apiextensionsv1.JSONSchemaProps{Type: "object",
		Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"numbers": {
				Type: "array", MaxItems: ptr.To[int64](1000),
				Items:        &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{Type: "integer"}},
				XValidations: apiextensionsv1.ValidationRules{{Rule: "self.all(x, self.all(y, x + y >= 0))", Message: "numbers must not be negative"}},
			},
		}}
	if _, err := client.Update(t.Context(), d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	there := dynamic.NewForConfigOrDie(s.Config).Resource(gadgets).Namespace("default")
	with := func(name string, numbers ...any) *unstructured.Unstructured {
		o := gadget(name)
		o.Object["numbers"] = numbers
		return o
	}
	eventually(t, "the rule holds", func(ctx context.Context) (bool, error) {
		_, err := there.Create(ctx, with("negative", int64(-1)),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "numbers must not be negative"), nil
	})
	many := make([]any, 1000)
	for i := range many {
		many[i] = int64(i)
	}
	_, err = there.Create(t.Context(), with("costly", many...), metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(fmt.Sprint(err), "call cost exceeds limit") {
		t.Errorf("an object for which the rule costs too much: %v", err)
	}
	if _, err := there.Create(t.Context(), with("cheap", many[:10]...),
		metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := there.Get(t.Context(), "costly", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the refused object: %v", err)
	}
}
