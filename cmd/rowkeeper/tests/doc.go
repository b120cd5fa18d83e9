// Package tests tests the programs as they are: the server's binary, started as a user starts it,
// and upstream's kubectl, built from its library. There is no code here but tests.
package tests
