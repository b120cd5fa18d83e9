// Package backends lets programs keep their state in "rowkeeper etcd" by their own code for etcd:
// Vault its secrets and its lock, CoreDNS its names, and Cilium what its nodes tell each other.
// There is no code here but tests. They run if ROWKEEPER_TEST_BACKENDS is set, since they compile
// for minutes.
package backends
