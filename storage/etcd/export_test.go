package etcd

// Enter returns what answers calls, for tests that make them without gRPC.
var Enter = (*Server).enter

// Watching is how many watches the server has.
func Watching(s *Server) int64 {
	s.watchers.mu.Lock()
	defer s.watchers.mu.Unlock()
	return s.watchers.held
}
