package testkit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/pkg/example/exampletest"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// FuzzHTTP sends requests with any names, selectors, continue tokens and resourceVersions to a
// server on SQLite in memory. None is answered by 500, none touches an object that it does not
// name, and a list has just what its selector selects.
func FuzzHTTP(f *testing.F) {
	server := exampletest.Start(f, testkit.Options{Database: testkit.Memory})
	client, err := rest.HTTPClientFor(server.Config)
	if err != nil {
		f.Fatal(err)
	}
	base := server.Config.Host + "/apis/ci.rowkeeper.dev/v1/namespaces/"
	do := func(t testing.TB, method, target, body string) (int, []byte) {
		request, err := http.NewRequestWithContext(t.Context(), method, target,
			strings.NewReader(body))
		if err != nil {
			return 0, nil // no client could send it
		}
		if request.Header.Set("Content-Type", "application/json"); method == http.MethodPatch {
			request.Header.Set("Content-Type", "application/merge-patch+json")
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatalf("%s %q: %v", method, target, err)
		}
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		// A resourceVersion of the future is answered so by every API server.
		if response.StatusCode >= 500 &&
			!bytes.Contains(answer, []byte("Too large resource version")) {
			t.Errorf("%s %q: %d %s", method, target, response.StatusCode, answer)
		}
		return response.StatusCode, answer
	}
	pipeline := func(name string, set map[string]string) string {
		quoted, err := json.Marshal(map[string]any{"name": name, "labels": set})
		if err != nil {
			panic(err) // strings can be marshaled
		}
		return fmt.Sprintf(`{"apiVersion":"ci.rowkeeper.dev/v1","kind":"Pipeline","metadata":%s,"spec":{"image":"golang:1.26","steps":[{"name":"main","command":["make"]}]}}`, quoted)
	}
	sets := map[string]map[string]string{"a": {"team": "one", "tier": "x"}, "b": {"team": "two"},
		"c": nil}
	for name, set := range sets {
		if code, answer := do(f, http.MethodPost, base+"kept/pipelines",
			pipeline(name, set)); code != http.StatusCreated {
			f.Fatalf("%d %s", code, answer)
		}
	}
	_, before := do(f, http.MethodGet, base+"kept/pipelines", "")
	_, page := do(f, http.MethodGet, base+"kept/pipelines?limit=1", "")
	var first struct{ Metadata struct{ Continue string } }
	if err := json.Unmarshal(page, &first); err != nil || first.Metadata.Continue == "" {
		f.Fatalf("a page: %s %v", page, err)
	}

	for _, name := range []string{"x", "../kept/a", "..", ".", "a%2fb",
		"x'; DROP TABLE rowkeeper_log; --", "\x00", "\xff", "ü", strings.Repeat("x", 300), "%",
		"x?y=z", "x#y", "X", ""} {
		f.Add(name, "team=one", "", "", "", 2)
	}
	for _, selector := range []string{"team in (one,two)", "team notin (one)", "!team", "team!=one",
		"team==one,tier", "team=' OR 1=1 --", "team in (", ",", "\x00", "team>1", "team<x",
		strings.Repeat("a,", 500)} {
		f.Add("x", selector, "metadata.name=a", "", "", 0)
	}
	for _, field := range []string{"metadata.name=a", "metadata.name!=a", "metadata.namespace=kept",
		"metadata.name=../a", "spec.image=x", "metadata.name='", "=", `metadata.name=a\,b`,
		"status.phase=Pending"} {
		f.Add("x", "", field, "", "", 1)
	}
	for _, revision := range []string{"0", "1", "-1", "18446744073709551615", "9223372036854775808",
		"x", "00", "1 OR 1=1", "\x00"} {
		f.Add("x", "", "", revision, "", 1)
	}
	for _, token := range []string{first.Metadata.Continue, "e30", "x",
		first.Metadata.Continue[:10],
		"eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiLi4vLi4vIn0"} {
		f.Add("x", "", "", "", token, 1)
	}
	f.Fuzz(func(t *testing.T, name, selector, field, revision, token string, limit int) {
		query := url.Values{}
		for parameter, value := range map[string]string{"labelSelector": selector,
			"fieldSelector": field, "resourceVersion": revision, "continue": token} {
			if value != "" {
				query.Set(parameter, value)
			}
		}
		if limit != 0 {
			query.Set("limit", fmt.Sprint(limit))
		}
		do(t, http.MethodGet, base+"kept/pipelines?"+query.Encode(), "")
		query.Set("resourceVersionMatch", "NotOlderThan")
		do(t, http.MethodGet, base+"kept/pipelines?"+query.Encode(), "")
		query.Set("resourceVersionMatch", "Exact")
		do(t, http.MethodGet, base+"kept/pipelines?"+query.Encode(), "")
		do(t, http.MethodGet, base+"kept/pipelines/a?"+
			url.Values{"resourceVersion": {revision}}.Encode(), "")
		watch := url.Values{"watch": {"1"}, "timeoutSeconds": {"0"}, "resourceVersion": {revision},
			"labelSelector": {selector}, "fieldSelector": {field}}
		if _, err := labels.Parse(selector); err != nil && selector != "" {
			// refused, or it would last
			do(t, http.MethodGet, base+"kept/pipelines?"+watch.Encode(), "")
		}

		// Names: as a part of the path, and in the object.
		escaped := url.PathEscape(name)
		do(t, http.MethodGet, base+"fuzz/pipelines/"+escaped, "")
		do(t, http.MethodGet, base+escaped+"/pipelines", "")
		do(t, http.MethodPatch, base+"fuzz/pipelines/"+escaped, `{"metadata":{"labels":{"x":"y"}}}`)
		if code, answer := do(t, http.MethodPost, base+"fuzz/pipelines",
			pipeline(name, nil)); code == http.StatusCreated {
			if len(content.IsPathSegmentName(name)) > 0 {
				t.Errorf("%q was created: %s", name, answer)
			}
			if code, answer := do(t, http.MethodDelete, base+"fuzz/pipelines/"+escaped,
				""); code != http.StatusOK {
				t.Errorf("what was created as %q cannot be deleted: %d %s", name, code, answer)
			}
		} else if name != "" && len(content.IsPathSegmentName(name)) == 0 {
			do(t, http.MethodDelete, base+"fuzz/pipelines/"+escaped, "")
		}

		// A list has what the selector selects, as the API machinery understands it.
		if code, answer := do(t, http.MethodGet, base+"kept/pipelines?"+
			url.Values{"labelSelector": {selector}}.Encode(), ""); code == http.StatusOK {
			parsed, err := labels.Parse(selector)
			if err != nil {
				t.Errorf("the selector %q was accepted: %v", selector, err)
				return
			}
			var list struct {
				Items []struct{ Metadata struct{ Name string } }
			}
			if err := json.Unmarshal(answer, &list); err != nil {
				t.Fatal(err)
			}
			want := 0
			for _, set := range sets {
				if parsed.Matches(labels.Set(set)) {
					want++
				}
			}
			if len(list.Items) != want {
				t.Errorf("the selector %q lists %d objects, want %d: %s", selector, len(list.Items),
					want, answer)
			}
		}
		if _, now := do(t, http.MethodGet, base+"kept/pipelines", ""); !bytes.Equal(items(now),
			items(before)) {
			t.Errorf("objects that were not named have changed: %s", now)
		}
	})
}

// items is a list without its resourceVersion.
func items(list []byte) []byte {
	_, after, _ := bytes.Cut(list, []byte(`"items":`))
	return after
}
