// Package crds installs the CustomResourceDefinitions of well-known projects, as their Go modules
// publish them, in the test kit's server, and uses them. There is no code here but tests.
package crds
