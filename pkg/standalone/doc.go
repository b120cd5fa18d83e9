// Package standalone lets an API server run by itself, with no cluster that would give it certificates, users and permissions: it keeps
// a directory with an authority of the server's own, the certificates signed by it, and a kubeconfig for the administrator.
//
// There is one user, the administrator, in the group system:masters, who may do everything. Whoever else has a
// certificate of this authority may find out what is served. Requests without a certificate are refused.
package standalone
