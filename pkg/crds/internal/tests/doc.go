// Package tests has the tests of the library that need a server with definitions: of the garbage
// collector, of package kinds, and of the command that rewrites objects.
package tests
