// Package accounts is for package crds. It lets service accounts sign in: it makes their tokens and
// checks them, on upstream's code, and publishes the keys by which others check them. The keys
// themselves are those of all servers of a database, see definitions.SigningKeys.
//
// # Who a token is
//
// A token names an account, and may name an object that it is bound to. It stands for the account
// until it ends, or until one of the two is gone, or is another one of the same name. A namespace
// that is deleted takes its accounts with it. For each request the account and the object are read
// from the database, and their UIDs compared. Upstream reads them from informers, and keeps answers
// for ten seconds, so that a deleted account can still do something there. Here a deletion that was
// acknowledged holds for every later request, at every server. That costs each request with a token
// a read of one object, or two for a token that is bound. A watch that goes on is not looked at
// again, as in a cluster.
//
// While the database is away, requests with tokens are refused (401), where those with certificates
// are still served what the server remembers. Clients try again.
//
// # Who is asked first
//
// A client certificate comes before a token, as in a cluster. Whoever gives a signed token that
// names our issuer is nobody else but its account: if the token is wrong, no other authenticator is
// asked, so that a wrong token is never sent elsewhere, and nobody becomes anonymous by it. All
// other tokens are left to the authenticators that the server has besides.
//
// # What is not here
//
// There are no pods and no nodes, so nothing can be bound to them. Secrets of the type
// kubernetes.io/service-account-token can be created, and nobody writes a token into them: such
// tokens never end. Tokens of that form are not accepted.
//
// # Replicas
//
// Each server makes the default accounts that are missing, by upstream's controller: who is late
// finds that the account is there. Nothing needs a leader. See package signingkeys for the keys.
package accounts
