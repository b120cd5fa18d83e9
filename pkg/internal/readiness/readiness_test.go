package readiness

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// A server is waited for while it is not ready, and not if it cannot be reached, or answers that it
// does not tell.
func TestAwait(t *testing.T) {
	for _, c := range []struct {
		name   string
		codes  []int // the last one is repeated
		within time.Duration
		asked  int64
		want   string
	}{
		{name: "ready", codes: []int{200}, within: time.Minute, asked: 1},
		{name: "later", codes: []int{500, 503, 200}, within: time.Minute, asked: 3},
		{name: "never", codes: []int{500}, within: 50 * time.Millisecond,
			want: "the server is not ready, and may not know of all its resources yet: wait " +
				"until its /readyz says ok"},
		{name: "secret", codes: []int{403}, within: time.Minute, asked: 1},
		{name: "unknown", codes: []int{404}, within: time.Minute, asked: 1},
		{name: "nobody", codes: []int{401}, within: time.Minute, asked: 1,
			want: "the server has asked for the client to provide credentials"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var asked atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
				r *http.Request) {
				n := asked.Add(1)
				w.WriteHeader(c.codes[min(int(n), len(c.codes))-1])
				fmt.Fprint(w, r.URL.Path)
			}))
			defer server.Close()
			discover := discovery.NewDiscoveryClientForConfigOrDie(&rest.Config{Host: server.URL})
			err := Await(t.Context(), discover, c.within)
			if c.want == "" && err != nil ||
				c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if c.asked != 0 && asked.Load() != c.asked {
				t.Errorf("asked %d times, want %d", asked.Load(), c.asked)
			}
		})
	}
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	if err := Await(t.Context(),
		discovery.NewDiscoveryClientForConfigOrDie(&rest.Config{Host: server.URL}),
		time.Minute); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("of a server that is not there: %v", err)
	}
}
