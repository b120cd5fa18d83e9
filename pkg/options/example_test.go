package options_test

import (
	"context"
	"fmt"
	"log"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// The options take the place of those of etcd: a program adds the flags, opens the database that
// they name, and lets them change the server's configuration.
func ExampleStorageOptions() {
	scheme := runtime.NewScheme()
	codecs := serializer.NewCodecFactory(scheme)
	o := options.NewStorageOptions("/registry/example.com", scheme, codecs, sqlite.Driver)
	flags := pflag.NewFlagSet("server", pflag.ContinueOnError)
	o.AddFlags(flags)
	if err := flags.Parse([]string{"--database=memory:"}); err != nil {
		log.Fatal(err)
	}
	if errs := o.Validate(); len(errs) > 0 {
		log.Fatal(errs)
	}
	store, err := o.Open(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	config := genericapiserver.NewConfig(codecs)
	if err := o.ApplyTo(config, store); err != nil {
		log.Print(err)
		return
	}
	fmt.Println("resources are stored in SQL:", config.RESTOptionsGetter != nil)
	// Output: resources are stored in SQL: true
}
