// Package programs runs the database servers that are installed on this machine. It is for tests,
// benchmarks, torture and package cluster; package dbserver uses it where no container can be had.
package programs
