// Package etcd3 runs upstream's tests of kube-apiserver's storage on "rowkeeper etcd", in place of
// etcd: those of k8s.io/apiserver/pkg/storage/etcd3, unchanged but for the package that starts the
// server. TestLockstep makes random requests of an etcd and of "rowkeeper etcd", and compares the
// answers and all events: 3,000, or as many as ROWKEEPER_LOCKSTEP says and the test's time allows,
// on as many pairs of servers at a time as ROWKEEPER_LOCKSTEP_PARALLEL says. There is no code here
// but tests.
package etcd3
