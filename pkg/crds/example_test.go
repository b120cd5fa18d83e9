package crds_test

import (
	"context"
	"log"

	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/rowkeeper/rowkeeper/pkg/crds"
	"github.com/rowkeeper/rowkeeper/pkg/definitions"
	"github.com/rowkeeper/rowkeeper/pkg/options"
)

// A server of an author's own serves CustomResourceDefinitions, too. Here config is the server's,
// and build makes the server from it.
func ExamplePrepare() {
	var (
		config  *genericapiserver.RecommendedConfig
		storage *options.StorageOptions
		build   func(*genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer, error)
	)
	store, err := storage.Open(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	if err := storage.ApplyTo(&config.Config, store); err != nil {
		log.Print(err)
		return
	}
	extend, err := crds.Prepare(config, definitions.Options{Storage: storage, Store: store})
	if err != nil {
		log.Print(err)
		return
	}
	server, err := build(config)
	if err != nil {
		log.Print(err)
		return
	}
	server, err = extend(server)
	if err != nil {
		log.Print(err)
		return
	}
	log.Print(server.PrepareRun().RunWithContext(context.Background()))
}
