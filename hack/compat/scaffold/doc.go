// Package scaffold has kubebuilder make a project, and runs the project's own tests, as they are,
// on the program rowkeeper. There is no code here but the test.
package scaffold
