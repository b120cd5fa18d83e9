// Package scaffold has kubebuilder make a project, and runs the project's own tests: as they are,
// on the program rowkeeper, and with the test kit in place of envtest. There is no code here but
// the tests.
package scaffold
