package garbagecollector_test

import (
	"log"

	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/rowkeeper/rowkeeper/pkg/garbagecollector"
)

// A server of an author's own collects the garbage among its objects while it serves. One of
// several replicas does so, if Options.Lock is set.
func ExampleCollector() {
	var server *genericapiserver.GenericAPIServer
	err := server.AddPostStartHook("garbage-collector",
		func(hook genericapiserver.PostStartHookContext) error {
			collector, err := garbagecollector.New(hook.LoopbackClientConfig,
				garbagecollector.Options{})
			if err != nil {
				return err
			}
			go collector.Run(hook)
			return nil
		})
	if err != nil {
		log.Fatal(err)
	}
}
