package server_test

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// A program is its API and its name. All flags of the command serve follow from them.
func ExampleNew() {
	scheme := runtime.NewScheme()
	codecs := serializer.NewCodecFactory(scheme)
	serve := server.New(server.Program{
		Name:    "bookmarks",
		Scheme:  scheme,
		Codecs:  codecs,
		Drivers: []storage.Driver{sqlite.Driver},
		NewConfig: func() *genericapiserver.RecommendedConfig {
			return genericapiserver.NewRecommendedConfig(codecs)
		},
		New: func(c *genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer, error) {
			return c.Complete().New("bookmarks", genericapiserver.NewEmptyDelegate())
		},
	}).Command()
	fmt.Println(serve.Name(), "--data-dir", serve.Flags().Lookup("data-dir").DefValue)
	// Output: serve --data-dir .bookmarks
}
