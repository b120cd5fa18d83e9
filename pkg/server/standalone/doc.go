// Package standalone is for server programs that run without a cluster, which would give them
// certificates, users and permissions. It keeps a directory with an authority of the server's own,
// the certificates that it signs, and a kubeconfig for the administrator.
//
// There is one user, the administrator, in the group system:masters, who may do everything. Whoever
// else has a certificate of this authority may find out what is served. Requests without a
// certificate are refused.
package standalone
