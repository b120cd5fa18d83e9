//go:build !linux && !darwin

package sqlite

// bootID names the run of the operating system, which this one does not tell.
func bootID() string { return "" }
