package history_test

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/rowkeeper/rowkeeper/pkg/history"
)

// A server of your own has histories. Its storage is that of package options.
func ExampleServe() {
	config := genericapiserver.NewRecommendedConfig(serializer.NewCodecFactory(runtime.NewScheme()))
	// err := storageOptions.ApplyTo(&config.Config, store)
	history.Serve(&config.Config)
}

// The paths of fields are those that a change tells.
func ExampleChanged() {
	before := map[string]any{"spec": map[string]any{"replicas": int64(1)}}
	after := map[string]any{"spec": map[string]any{"replicas": int64(2)},
		"metadata": map[string]any{"labels": map[string]any{"example.com/team": "blue"}}}
	fmt.Println(history.Changed(before, after))
	fmt.Println(history.Field("metadata.labels", "example.com/team"))
	// Output:
	// [metadata spec.replicas]
	// metadata.labels["example.com/team"]
}
