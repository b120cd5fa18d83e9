// Package clients shows the ways in which a program can use the example API, each in a few lines:
// with the generated typed client and server-side apply, with the dynamic client, with shared
// informers and listers, and with a client written by hand.
package clients
