package etcd

import (
	"errors"
	"runtime"
	"time"

	"google.golang.org/protobuf/proto"
)

// Enter returns what answers calls, for tests that make them without gRPC.
var Enter = (*Server).enter

// MaxIdle sets how long a connection may have no call.
func (c ServerConfig) MaxIdle(d time.Duration) ServerConfig {
	c.maxIdle = d
	return c
}

// Watching is how many watches the server has.
func Watching(s *Server) int64 {
	s.watchers.mu.Lock()
	defer s.watchers.mu.Unlock()
	return s.watchers.held
}

// Holds tells how much an answer takes in the gateway, as it came, decoded and as JSON, and how
// much the gateway counts for it.
func Holds(m proto.Message) (held, counted int64, err error) {
	sent, err := proto.Marshal(m)
	if err != nil {
		return 0, 0, err
	}
	live := func() int64 {
		var now runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&now)
		return int64(now.HeapAlloc)
	}
	before := live()
	got := m.ProtoReflect().New().Interface()
	err = proto.Unmarshal(sent, got)
	whole, jsonErr := asJSON.Marshal(map[string]any{"result": got}) // as in a stream
	after := live()
	runtime.KeepAlive(got)
	runtime.KeepAlive(whole)
	return int64(len(sent)) + after - before, answerBytes(m), errors.Join(err, jsonErr)
}
