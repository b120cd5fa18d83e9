package etcd

// Enter returns what answers calls, for tests that make them without gRPC.
var Enter = (*Server).enter
