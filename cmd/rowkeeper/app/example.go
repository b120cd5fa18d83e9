package app

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/rowkeeper/rowkeeper/deploy/examples"
	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/generated/clientset/versioned"
)

// createExample creates the example Pipeline, unless there are pipelines.
func createExample(ctx context.Context, config *rest.Config) error {
	client, err := versioned.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	pipelines, err := client.CiV1().Pipelines(metav1.NamespaceAll).List(ctx,
		metav1.ListOptions{Limit: 1})
	if err != nil {
		return fmt.Errorf("list pipelines: %w", err)
	}
	if len(pipelines.Items) > 0 {
		return nil
	}
	var pipeline civ1.Pipeline
	if err := yaml.UnmarshalStrict(examples.Hello, &pipeline); err != nil {
		return fmt.Errorf("read the example: %w", err)
	}
	_, err = client.CiV1().Pipelines(pipeline.Namespace).Create(ctx, &pipeline,
		metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the example: %w", err)
	}
	return nil
}
