package etcd

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A panic ends the call in which it happens, and no other tenant's. If it came from below this
// package, locks of the store may be held for ever, so the store is closed. The [Opener] opens it
// again for the next call.

var errPanicked = status.Error(codes.Internal, "the server has made a mistake: its log says more")

// recovered is deferred by what answers a call. now is nil before the store was opened.
func (s *Server) recovered(now *storeServer, err *error) {
	p := recover()
	if p == nil {
		return
	}
	below := now != nil && fromBelow()
	s.cfg.Logger.Error("a call has panicked", "panic", fmt.Sprint(p), "storeClosed", below, "stack",
		string(debug.Stack()))
	if below {
		now.s.Break()
	}
	*err = errPanicked
}

// guarded calls f, for a goroutine of a call.
func (s *storeServer) guarded(f func() error) (err error) {
	defer s.recovered(s, &err)
	return f()
}

// fromBelow tells whether the panic that was recovered has left a function of the storage below
// this package. It is called by what has recovered it, while the stack is still there.
func fromBelow() bool {
	const storage = "github.com/rowkeeper/rowkeeper/storage"
	pcs := make([]uintptr, 100)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	for {
		f, more := frames.Next()
		if rest, ok := strings.CutPrefix(f.Function, storage); ok &&
			!strings.HasPrefix(rest, "/etcd.") && !strings.HasPrefix(rest, "/etcd_test.") {
			return true
		}
		if !more {
			return false
		}
	}
}
