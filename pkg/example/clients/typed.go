package clients

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	applyv1 "github.com/rowkeeper/rowkeeper/pkg/example/generated/applyconfiguration/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/generated/clientset/versioned"
)

// Apply says by server-side apply what a pipeline shall be like, as far as the caller is concerned,
// and leaves the rest of it to others. It creates the pipeline if it does not exist.
func Apply(ctx context.Context, client versioned.Interface, namespace, name, image string,
	commands ...[]string) (*v1.Pipeline, error) {
	spec := applyv1.PipelineSpec().WithImage(image)
	for i, command := range commands {
		spec.WithSteps(applyv1.Step().WithName(stepName(i)).WithCommand(command...))
	}
	return client.CiV1().Pipelines(namespace).Apply(ctx,
		applyv1.Pipeline(name, namespace).WithSpec(spec),
		metav1.ApplyOptions{FieldManager: "clients-example", Force: true})
}

func stepName(i int) string { return "step-" + string(rune('a'+i)) }
