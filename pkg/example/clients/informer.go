package clients

import (
	"context"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"github.com/rowkeeper/rowkeeper/pkg/example/generated/clientset/versioned"
	"github.com/rowkeeper/rowkeeper/pkg/example/generated/informers/externalversions"
)

// Census counts the runs of each pipeline in a namespace whenever one comes or goes. It asks the
// server once, and then counts from memory, where the informer keeps what the lister lists. It
// returns when ctx ends.
func Census(ctx context.Context, client versioned.Interface, namespace string,
	changed func(runs map[string]int)) error {
	factory := externalversions.NewSharedInformerFactoryWithOptions(client, 0,
		externalversions.WithNamespace(namespace))
	runs := factory.Ci().V1().PipelineRuns()
	lister := runs.Lister().PipelineRuns(namespace)
	count := func(any) {
		all, err := lister.List(labels.Everything())
		if err != nil {
			return // from memory, it never fails
		}
		census := map[string]int{}
		for _, run := range all {
			census[run.Spec.PipelineName]++
		}
		changed(census)
	}
	if _, err := runs.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: count,
		DeleteFunc: count}); err != nil {
		return err
	}
	factory.StartWithContext(ctx)
	<-ctx.Done()
	factory.Shutdown()
	return nil
}
