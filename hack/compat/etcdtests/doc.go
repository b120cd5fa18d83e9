// Package etcdtests runs etcd's own tests of its API and of its clients on "rowkeeper etcd", in
// place of etcd: those of go.etcd.io/etcd/tests/v3, unchanged but for a few lines of their
// framework that start the server. The file unfit.txt names the tests that fail, and why. README.md
// has the numbers. There is no code here but tests, and package member for the framework.
package etcdtests
