// Package e2e tests Rowkeeper as a part of a cluster, by the manifests in deploy/, on one machine
// without containers.
//
// These are real: kube-apiserver, kube-controller-manager and kube-scheduler, which the module in
// controlplane/ builds from upstream's sources; kubectl; the database server; Rowkeeper's program
// as it is in the image, with its deployment's arguments, environment, users and mounted files;
// certificates, and RBAC for every request.
//
// The cluster's own objects are in a database, too, which "rowkeeper etcd" serves: SQLite, or what
// ROWKEEPER_E2E_DATABASE names (postgres, mariadb, mysql, or etcd for comparison). Package
// kubernetes runs a shorter list of tests on control planes on each of them. Package failover needs
// no cluster: it has servers on PostgreSQL, whose standby takes over.
//
// One thing is not real: no kubelet runs the pods. Package node stands in for a kubelet, and
// package balancer for kube-proxy; their documentation says what they leave out. The Service is of
// type ExternalName with the address of the balancer. Everything else is applied from deploy/ as it
// is.
//
// TestAuthor needs a Docker engine, which builds the images of projects that rowkeeper init writes.
//
// PostgreSQL and MySQL run in containers or as programs of this machine. The tests run one after
// the other on one installation, each in a namespace of its own; a test that stops something waits
// until it runs again.
package e2e
