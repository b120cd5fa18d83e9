// Package etcd3 runs upstream's tests of kube-apiserver's storage on "rowkeeper etcd", in place of
// etcd: those of k8s.io/apiserver/pkg/storage/etcd3, unchanged but for the package that starts the
// server. There is no code here but tests.
package etcd3
