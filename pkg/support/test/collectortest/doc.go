// Package collectortest has the cases by which garbage collectors are compared. A test runs them on
// a server with CustomResourceDefinitions and Namespaces, ours or kube-apiserver, and with the
// collector that works there.
package collectortest
