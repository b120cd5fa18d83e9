// Package large runs "rowkeeper serve" with a kind that has more objects than a watch cache should
// hold: how much memory the server takes, and how fast it answers. There is no code here but a
// test. It runs if ROWKEEPER_TEST_LARGE says how many objects there are, of 1 KB each:
//
//	ROWKEEPER_TEST_LARGE=10000000 go test ./large -run TestLarge/rowkeeper-postgres -v -timeout 3h
package large
