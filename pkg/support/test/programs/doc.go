// Package programs runs the database servers that are installed on this machine. It is for tests,
// benchmarks and torture; package dbserver uses it where no container can be had.
package programs
