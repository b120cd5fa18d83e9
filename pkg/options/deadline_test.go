package options

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/client-go/kubernetes/scheme"
)

// Handlers give up before the filters around them do, and what has no deadline gets none.
func TestLeaveTimeToAnswer(t *testing.T) {
	for _, c := range []struct{ request, early time.Duration }{
		{0, 0},
		{time.Minute, answerWithin},
		{time.Second, time.Second / 10},
	} {
		config := &genericapiserver.Config{BuildHandlerChainFunc: func(handler http.Handler,
			_ *genericapiserver.Config) http.Handler {
			return handler
		}}
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
		}), config).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/",
			nil).WithContext(ctx))
		if !called {
			t.Error("the handler was not called")
		}
	}
}

// A client that leaves is no error of the server: what its handler writes afterwards is dropped,
// and the log says nothing about it.
func TestClientLeaves(t *testing.T) {
	var mu sync.Mutex
	var logged []string
	handlers := utilruntime.ErrorHandlers
	defer func() { utilruntime.ErrorHandlers = handlers }()
	utilruntime.ErrorHandlers = []utilruntime.ErrorHandler{func(_ context.Context, err error,
		msg string, _ ...any) {
		mu.Lock()
		defer mu.Unlock()
		logged = append(logged, fmt.Sprint(msg, err))
	}}
	config := &genericapiserver.Config{BuildHandlerChainFunc: func(handler http.Handler,
		_ *genericapiserver.Config) http.Handler {
		return filters.WithTimeout(handler, func(r *http.Request) (*http.Request, bool, func(),
			*apierrors.StatusError) {
			return r, false, func() {}, apierrors.NewTimeoutError("over", 0)
		})
	}}
	leaveTimeToAnswer(config)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	began, filtered, answered := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(filtered)
		config.BuildHandlerChainFunc(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(answered)
			close(began)
			<-filtered // the filter has ended the request
			responsewriters.ErrorNegotiated(apierrors.NewServiceUnavailable("the database is away"),
				scheme.Codecs, schema.GroupVersion{}, w, r)
		}), config).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/",
			nil).WithContext(ctx))
	}()
	<-began
	cancel() // the client leaves
	<-answered
	mu.Lock()
	defer mu.Unlock()
	for _, line := range logged {
		if strings.Contains(line, http.ErrHandlerTimeout.Error()) {
			t.Errorf("the log has: %s", line)
		}
	}
}
