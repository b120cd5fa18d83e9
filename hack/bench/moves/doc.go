// Package moves lets "rowkeeper move" move real etcds and kines, and stores, under load, with
// clients that watch. There is no code here but tests. They run if ROWKEEPER_TEST_MOVES says how
// many objects there are: make test-moves.
package moves
