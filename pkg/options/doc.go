// Package options is for authors of API servers on k8s.io/apiserver. It has what the main program
// needs to store its objects in a SQL database: flags, their checks, and what they change in the
// server's configuration. [StorageOptions] takes the place of the options for etcd:
//
//	options := options.NewStorageOptions("/registry/example.com", scheme, codecs, sqlite.Driver)
//	options.AddFlags(flags)
//	…
//	db, err := options.Open(ctx)
//	defer db.Close()
//	err = options.ApplyTo(&config.Config, db)
//
// with the Etcd of genericoptions.RecommendedOptions set to nil.
package options
