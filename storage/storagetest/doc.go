// Package storagetest resets the database of a test, for authors of test kits. [Restore] brings the
// objects back to a state that [Capture] has kept. [DeleteExpired] deletes expired objects now.
//
//	before, err := storagetest.Capture(ctx, db, prefix)
//	…
//	err = storagetest.Restore(ctx, db, before)
//
// [Restore] to [Nothing] leaves no object below a prefix. Servers, watches and caches that use the
// database can go on meanwhile.
package storagetest
