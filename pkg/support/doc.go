// Package support is a folder of packages that Rowkeeper's programs, tests and tools share with
// pkg. Nothing in it is promised: a package of it may change or go at any time. There is no code in
// the folder itself.
//
// Parts of the programs:
//
//	commandline the commands that work on a database directly: their errors of use, files, progress
//	monitoring  metrics of the build and of the certificates
//	pki         all certificates, and the files that keep them
//	standalone  the directory of a server without a cluster
//	version     the version of the program
//
// Parts of the tests, which no program links:
//
//	test/clustertest   a cluster, as tests of aggregated servers need it
//	test/cluster       a Kubernetes control plane, for make cluster and for tests
//	test/collectortest the cases of garbage collection, for any server
//	test/dbserver      servers of PostgreSQL, MariaDB and MySQL, wherever a test can have them
//	test/executable    the programs of a control plane as processes
//	test/programs      servers of databases as processes, and their kinds
//	test/rolestest     the cases of roles and their bindings, for any server
//	test/signintest    an issuer of tokens
package support
