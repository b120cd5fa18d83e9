// Package database manages the stores of an open database: which of them has the objects of a
// resource, and how they are moved, backed up and restored. A store is one history of keys, and a
// database has one or more. Below this package, mvcc keeps each history. Above it are the façades:
// storage, which is storage.Interface of Kubernetes, and storage/etcd, which is etcd's API. They
// get a store here, and then use mvcc directly. So do etcdmove, which moves whole stores, and the
// tests' storagetest.
//
// The package knows keys and values, and links nothing of Kubernetes. A resource is a string here,
// such as coordination.k8s.io/leases.
//
//   - store.go opens a store, and creates, measures, limits and drops stores.
//   - storepool.go opens the stores of a process when they are used, and closes them afterwards.
//   - placement.go says which store has the objects of a resource, and records it.
//   - move.go moves the objects of a resource to another store.
//   - backup.go writes what a store holds to a file, and restores it. The format of the file is in
//     storage/internal/archive. compare.go compares a database with such a file.
//   - keys.go says where the objects of a resource are among the keys.
package database
