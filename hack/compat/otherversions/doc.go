// Package otherversions tests a controller with the versions of k8s.io before Rowkeeper's, with
// which Rowkeeper's own packages do not compile. Its API server is a process.
package otherversions
