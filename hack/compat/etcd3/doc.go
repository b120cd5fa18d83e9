// Package etcd3 runs upstream's tests of kube-apiserver's storage on "rowkeeper etcd", in place of
// etcd: those of k8s.io/apiserver/pkg/storage/etcd3, unchanged but for the package that starts the
// server. There is no code here but tests.
//
// TestLockstep makes random requests of an etcd and of "rowkeeper etcd", and compares the answers
// and all events: 3,000, or as many as ROWKEEPER_LOCKSTEP says and the test's time allows, on as
// many pairs of servers at a time as ROWKEEPER_LOCKSTEP_PARALLEL says. A million requests on
// SQLite, 38,801 on PostgreSQL, 62,677 on MariaDB and 45,617 on MySQL were answered as by etcd
// 3.7.3. They took half an hour, and four minutes each, on a busy machine.
package etcd3
