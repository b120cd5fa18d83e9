// Package storage keeps the objects of Kubernetes-style API servers in SQL databases. It implements
// storage.Interface of k8s.io/apiserver, below the generic registry and its watch cache, where etcd
// would be otherwise.
//
// An API server opens a [Store] and gives a [RESTOptionsGetter] to its generic server
// configuration:
//
//	store, err := storage.Open(ctx, storage.Config{
//		URL:     "sqlite:///var/lib/example/state.db",
//		Drivers: []storage.Driver{sqlite.Driver},
//		Migrate: true,
//	})
//	getter, err := storage.NewRESTOptionsGetter(store, storage.RESTOptions{Codec: codec, EncodeVersioner: versioner})
//	config.RESTOptionsGetter = getter
//
// The drivers are in packages of their own, so that a program links the ones that it names.
//
// A [Store] stands on a store of storage/internal/database, which knows keys and values. There it
// is opened, moved and backed up. This package adds the objects. storage/etcd serves the same
// stores by etcd's API.
//
// # What holds
//
//   - The resourceVersion of an object is the revision of its newest write, in one history of all
//     resources of the store, whatever replica wrote it. Revisions rise by one.
//   - A write is answered when the database has committed it durably. If the database did not
//     confirm it in time, and cannot be asked, the answer is 504, and says that the write may have
//     been done; 503 means that it was not, and will not be.
//   - A read without a resourceVersion sees every write that any replica acknowledged before the
//     read began. This holds through the watch cache, too. A list asks the database for the newest
//     revision, waits until the cache has reached it, and is served from memory.
//   - A list is one snapshot, over all its pages. A watch sees every event once and in order, or
//     ends with 410.
//   - An object with a time to live is deleted, by the database's clock, with a revision and an
//     event like any other deletion.
//
// # Limits
//
// A key is the prefix, the resource, the namespace and the name. Its length, and the size of an
// object as it is stored, are limited by the database: 1,024 bytes and 1.5 MiB are possible
// everywhere. Larger keys and objects are answered by 422 and 413, with the limit. A list does not
// say how many items remain if they are more than 10,000.
//
// # The watch cache
//
// Watch caches serve consistent reads only if the storage can report a watch's progress on request.
// Upstream asks this of one variable of the process, feature.DefaultFeatureSupportChecker. The
// first call of [Open] replaces it. So open the database before you build any API server. This
// holds for servers on etcd, too.
//
// A watch cache knows no event from before it was filled. A watch that resumes at an older
// revision, as after a restart of the server, gets what it has missed from the database, and goes
// on from the cache. It is answered by 410 if the revision is compacted, or more than 10,000
// revisions behind.
//
// A cache is filled when it is made, and again when the history has changed, or after the process
// was paused for longer than the compaction window. Lists and watches wait for that, for up to 3 s;
// then they are answered by 429 with Retry-After.
package storage
