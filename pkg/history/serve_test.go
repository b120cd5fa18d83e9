package history

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes/scheme"
)

// ask has a server answer a request for a history. It has no storage of ours, only a next handler.
func ask(t *testing.T, ctx context.Context, s *server, url string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	resolver := &request.RequestInfoFactory{APIPrefixes: sets.NewString("apis", "api"),
		GrouplessAPIPrefixes: sets.NewString("api")}
	info, err := resolver.NewRequestInfo(r)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r.WithContext(request.WithRequestInfo(r.Context(), info)))
	return w
}

func serverBefore(next http.HandlerFunc) *server {
	return &server{next: next, slots: make(chan struct{}, mostAtOnce),
		config: &genericapiserver.Config{Serializer: scheme.Codecs}}
}

// TestHistoryOfOthers: a resource that is in no storage of ours answers itself, whether it can be
// listed or not, and is not listed whole.
func TestHistoryOfOthers(t *testing.T) {
	const path = "/apis/example.com/v1/namespaces/ns/things"
	for listed, others := range map[int]bool{200: true, 404: true, 405: true, 403: false, 500: false} {
		var asked []string
		s := serverBefore(func(w http.ResponseWriter, r *http.Request) {
			if asked = append(asked, r.URL.String()); len(asked) == 1 {
				w.WriteHeader(listed)
				return
			}
			_, _ = w.Write([]byte("its own"))
		})
		w := ask(t, t.Context(), s, path+"/one/history?limit=5")
		want, code, body := []string{path + "?limit=1"}, listed, ""
		if others {
			want, code, body = append(want, path+"/one/history?limit=5"), 200, "its own"
		}
		if !slices.Equal(asked, want) || w.Code != code || w.Body.String() != body {
			t.Errorf("a list with %d: %q were asked, and the answer is %d %q", listed, asked, w.Code,
				w.Body)
		}
		if len(s.slots) != 0 {
			t.Error("a slot is kept")
		}
	}
}

// TestHistoriesAtOnce: a history waits for its turn, and no longer than its client.
func TestHistoriesAtOnce(t *testing.T) {
	began, end := make(chan bool), make(chan bool)
	s := serverBefore(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "limit=1" {
			began <- true
			<-end
		}
	})
	done := make(chan int, mostAtOnce+1)
	one := func(ctx context.Context) {
		done <- ask(t, ctx, s, "/api/v1/namespaces/ns/secrets/one/history").Code
	}
	for range mostAtOnce {
		go one(t.Context())
		<-began
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	one(ended)
	if code := <-done; code != http.StatusGatewayTimeout {
		t.Errorf("a request that has ended is answered by %d", code)
	}
	go one(t.Context())
	end <- true // the last one begins in the place of one that has ended
	<-began
	for range mostAtOnce {
		end <- true
	}
	for range mostAtOnce + 1 {
		if code := <-done; code != http.StatusOK {
			t.Errorf("a history is answered by %d", code)
		}
	}
}
