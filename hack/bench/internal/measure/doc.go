// Package measure measures what the bench reports: latencies, CPU time and memory of processes,
// sizes of directories, and the durability of a file system.
package measure
