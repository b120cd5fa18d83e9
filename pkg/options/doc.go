// Package options is for authors of API servers on k8s.io/apiserver. It has what the main program
// needs to store its objects in a SQL database: flags, their checks, and what they change in the
// server's configuration. Packages server, kinds, crds, garbagecollector and testkit take their
// storage from here, too. [StorageOptions] takes the place of the options for etcd:
//
//	options := options.NewStorageOptions("/registry/example.com", scheme, codecs, sqlite.Driver)
//	options.AddFlags(flags)
//	…
//	store, err := options.Open(ctx)
//	defer store.Close()
//	err = options.ApplyTo(&config.Config, store)
//
// with the Etcd of genericoptions.RecommendedOptions set to nil.
package options
