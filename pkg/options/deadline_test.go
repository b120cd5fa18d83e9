package options

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
)

// Handlers give up before the filters around them do, and what has no deadline gets none.
func TestLeaveTimeToAnswer(t *testing.T) {
	for _, c := range []struct{ request, early time.Duration }{
		{0, 0},
		{time.Minute, answerWithin},
		{time.Second, time.Second / 10},
	} {
		config := &genericapiserver.Config{BuildHandlerChainFunc: func(handler http.Handler, _ *genericapiserver.Config) http.Handler { return handler }}
		leaveTimeToAnswer(config)
		ctx, cancel := context.Background(), context.CancelFunc(func() {})
		if c.request > 0 {
			ctx, cancel = context.WithTimeout(ctx, c.request)
		}
		defer cancel()
		deadline, has := ctx.Deadline()
		called := false
		config.BuildHandlerChainFunc(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			called = true
			seen, ok := r.Context().Deadline()
			if early := deadline.Sub(seen); ok != has || early > c.early || early < c.early/2 {
				t.Errorf("of a request with %s, the handler has %s less (%t)", c.request, early, ok)
			}
		}), config).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
		if !called {
			t.Error("the handler was not called")
		}
	}
}
