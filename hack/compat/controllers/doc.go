// Package controllers runs the controllers of other projects, which were written for clusters, on
// the program rowkeeper, and takes each of them through a scenario of its own while the servers are
// killed. The projects' modules have their definitions, which are installed from there. There is no
// code here but the tests.
package controllers
