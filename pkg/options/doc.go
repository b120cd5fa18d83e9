// Package options has what an API server's main program needs to store its objects in a SQL database: flags, their checks, and what they change in a
// server's configuration. [StorageOptions] stands where the options for etcd would otherwise:
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
