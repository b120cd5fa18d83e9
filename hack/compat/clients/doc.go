// Package clients runs other people's clients of etcd on "rowkeeper etcd": Patroni, which keeps a
// cluster of PostgreSQL by it, two libraries of Python, and etcdctl 3.4, as Debian packages them;
// etcdctl 3.7, from the Go module proxy; and the library etcd3 of JavaScript, from npm. There is no
// code here but tests. A test whose package is not installed is skipped, or fails if
// ROWKEEPER_TEST_CLIENTS=require. npm is asked only if ROWKEEPER_TEST_NPM is set. Clients that are
// libraries of Go are in the module hack/compat/backends.
package clients
