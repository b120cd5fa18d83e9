package testkit

// TryStart is Start for servers that cannot be started.
var TryStart = start
