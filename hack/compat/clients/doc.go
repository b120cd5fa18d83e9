// Package clients runs other people's clients of etcd on "rowkeeper etcd", as Debian packages them:
// Patroni, which keeps a cluster of PostgreSQL by it, two libraries of Python, and etcdctl 3.4.
// There is no code here but tests. A test whose package is not installed is skipped, or fails if
// ROWKEEPER_TEST_CLIENTS=require.
package clients
