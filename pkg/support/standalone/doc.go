// Package standalone is for server programs that run without a cluster, which would give them
// certificates, users and permissions. It keeps a directory with an authority of the server's own,
// the certificates that it signs, and a kubeconfig for the administrator.
//
// Users sign in by certificates of this authority, or of others that are named, which say who they
// are and in which groups. The administrator's is in the group system:masters. Package access says
// what they may do. Requests without a certificate are refused, unless the program
// lets them in otherwise.
//
// A certificate cannot be taken back: it is good until it expires, or until the directory has
// another authority.
package standalone
