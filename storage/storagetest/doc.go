// Package storagetest is for authors of test kits. It brings the objects in a database back to an
// earlier state, and deletes what has expired when the test says so.
//
//	before, err := storagetest.Capture(ctx, db, prefix)
//	…
//	err = storagetest.Restore(ctx, db, before)
//
// [Restore] to [Nothing] leaves no object below a prefix. Servers, watches and caches that use the
// database can go on meanwhile.
package storagetest
