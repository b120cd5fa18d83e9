// Package garbagecollector is for authors of API servers without a cluster. It deletes objects
// whose owners are gone. It removes an owner's finalizer when the owner has nothing left to wait
// for. One server at a time does so, by a lock in the database, which packages options and storage
// open. The controller of the same name does so in a cluster:
//
//   - An object all of whose owners are absent is deleted. One that has other owners, too, loses
//     its references to the absent ones.
//   - An owner that is deleted in the foreground, as its finalizer foregroundDeletion says, stays
//     until no dependent is left whose reference has blockOwnerDeletion.
//   - An owner whose finalizer is orphan stays until no dependent refers to it: the references are
//     removed, and the dependents stay.
//
// The server's registries must have EnableGarbageCollection set, so that they set these finalizers.
//
// # How it works
//
// A [Collector] follows the metadata of all objects that can be deleted, listed and watched, of
// whatever kinds there are at the time, by watches that the server's watch caches serve. It keeps
// of each object what a graph of owners and dependents needs. Every change says which objects have
// to be looked at: they are put into a queue, and workers look at one each. Their decision is a
// function of the object and of how its owners stand. A request that fails is tried again, later
// every time. The graph is in memory only, and is made anew by whoever becomes the collector.
//
// # Invariants
//
// An object that has an owner is never deleted. The graph may be old, so it is never taken as proof
// that an owner is absent. An owner is absent if a read of the database, which the watch cache does
// not answer, finds nothing of its name or another UID. The collector also ignores an owner that
// waits for its dependents. That owner is being deleted, and cannot keep a dependent alive. The
// collector reads that, too, and nothing that was read is remembered. Where the owner's kind is not
// served any more, the owner is absent if it was seen to go, and a read finds no definition of it.
//
// This holds beside a restore, which brings back objects with their UIDs and resourceVersions, and
// whose events come kind by kind: an owner is read before each deletion. There remains the moment
// between this read and the deletion. If a restore brings back both objects within it, the
// dependent is deleted. Stop the servers first to exclude that.
//
// Nothing is deleted for references that it does not have any more. Every deletion and every change
// names the UID and the resourceVersion from which it was decided. If the object has changed
// meanwhile, it is read again, and deleted only if its references are the same.
//
// Nothing is forgotten. Only an event makes an object a candidate: an event of the object or of one
// of its owners, or, for a kind that is not served, the appearance of the kind. An owner that
// exists and is not in the graph has such an event still to come, or is of a kind that is not
// watched: its dependents are looked at again until it is in the graph or gone.
//
// Two collectors do no harm. All of the above holds for each by itself, whatever the other one
// does, so that replicas elect one only to save work: see [Options.Lock].
//
// Owners that wait for each other in a circle do not wait for ever. An owner is not blocked by a
// dependent that is itself waiting, over whatever others, for that owner.
//
// # What a watch may not have told yet
//
// Kinds are watched one by one, so that an owner's deletion may be seen before the creation of a
// dependent which came first. One that is deleted in the foreground may then go before that
// dependent, which follows it. One that is deleted with the finalizer orphan is remembered: the
// dependent loses its reference when it is seen. Only if another replica becomes the collector in
// that moment, the dependent is deleted instead.
package garbagecollector
