package tests

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	pipelinesPage = "#/history?group=ci.rowkeeper.dev&resource=pipelines"
	helloPage     = pipelinesPage + "&of=default&name=hello"
)

// rowOf is the selector of a revision in the timeline.
func rowOf(revision string) string { return fmt.Sprintf(`.rows li[data-revision="%s"]`, revision) }

// TestPage: the page follows an object without a reload, shows how it was, what differs, and mends
// it.
func TestPage(t *testing.T) {
	programPath(t, "chromium")
	eachDatabase(t, func(t *testing.T, start func(string, ...string) *server) {
		s := start(t.TempDir(), "--enable-crds", "--enable-history",
			"--history-users=ci.rowkeeper.dev/pipelines")
		s.ok(t, manifest("hello", "make"), "create", "-f", "-")
		patch := func(command string) string {
			t.Helper()
			s.ok(t, "", "patch", "pipeline", "hello", "--type=json", "--field-manager=editor",
				"--as=mary", "--as-group=system:masters", "-p",
				fmt.Sprintf(`[{"op":"replace","path":"/spec/steps/0/command/2","value":%q}]`, command))
			return s.jsonpath(t, "hello", ".metadata.resourceVersion")
		}
		first := s.jsonpath(t, "hello", ".metadata.resourceVersion")

		b := openUI(t, s.kubeconfig())
		b.goTo(pipelinesPage)
		b.do(chromedp.Evaluate[chromedp.Void]("void (window.loadedOnce = true)"))
		b.shows(".changes .log", "hello")
		b.click(`.row[data-key="default/hello"]`)
		b.until(`document.querySelectorAll('.rows li').length === 1`)
		b.shows(rowOf(first), "create")

		// A change appears, with who has made it.
		second := patch("make test")
		b.shows(rowOf(second), "mary with editor")
		b.shows(rowOf(second), "update")
		b.shows(rowOf(second), "spec.steps")
		b.shows(".revision", second)
		third := patch("make broken")
		b.shows(".revision", third)

		// A diff with the revision before, and one between any two.
		removed := `[...document.querySelectorAll('.state .removed code')].map((e) => e.innerText.trim()).join('; ')`
		added := strings.Replace(removed, "removed", "added", 1)
		b.until(removed + `.includes('- make test')`)
		b.until(added + `.includes('- make broken')`)
		b.do(chromedp.SetValue(chromedp.CSS(".state select"), first),
			chromedp.Evaluate[chromedp.Void](
				`void document.querySelector('.state select').dispatchEvent(new Event('change', {bubbles: true}))`))
		b.shows(".state .direction", "From revision "+first+" to revision "+third)
		b.until(removed + `.includes('- make;') || ` + removed + `.endsWith('- make')`)
		b.until(added + `.includes('- make broken')`)

		// The slider shows the old state.
		b.press(".track input", kb.ArrowLeft)
		b.shows(".revision", second)
		b.press(".track input", kb.Home)
		b.shows(".revision", first)
		b.until(`document.querySelector('.track input').ariaValueText.startsWith('revision ` + first + `,')`)
		b.do(chromedp.SetValue(chromedp.CSS(".state select"), "none"),
			chromedp.Evaluate[chromedp.Void](
				`void document.querySelector('.state select').dispatchEvent(new Event('change', {bubbles: true}))`))
		b.until(`/- make$/m.test(document.querySelector('.state .diff').innerText)`)

		// An undo says what it does before it is done.
		b.click(".state button.primary")
		b.shows("dialog", "make broken")
		if now := s.jsonpath(t, "hello", ".spec.steps[0].command[2]"); now != "make broken" {
			t.Errorf("the dry run has written %q", now)
		}
		uid := s.jsonpath(t, "hello", ".metadata.uid")
		b.click("dialog button.primary")
		b.until(`!document.querySelector('dialog')`)
		b.until(`document.querySelectorAll('.rows li').length === 4`)
		if now := s.jsonpath(t, "hello", ".spec.steps[0].command[2]"); now != "make" {
			t.Errorf("the undo has left %q", now)
		}
		b.shows(".revision", s.jsonpath(t, "hello", ".metadata.resourceVersion"))
		b.shows(".rows li", "rowkeeper-ui")

		// What was deleted is created anew.
		s.ok(t, "", "delete", "pipeline", "hello")
		b.shows(".title", "not there now")
		b.shows(".rows li", "delete")
		b.click(".state button.primary")
		b.shows("dialog h2", "Create hello")
		b.click("dialog button.primary")
		b.until(`!document.querySelector('dialog') && !document.querySelector('.title .badge')`)
		if now := s.jsonpath(t, "hello", ".metadata.uid"); now == uid || now == "" {
			t.Errorf("the UID is %q, and was %q", now, uid)
		}

		// All of it in one page.
		b.click(".crumbs a")
		b.until(`document.querySelectorAll('.log tbody tr').length === 6`)
		b.shows(fmt.Sprintf(`.log tr[data-revision="%s"] .who`, second), "mary with editor")
		b.goTo("#/server")
		b.until(`document.querySelectorAll('.pictures svg .line').length > 0`)
		b.until(`[...document.querySelectorAll('.values')].some((e) => /[1-9]\d* open/.test(e.innerText))`)
		b.until("window.loadedOnce")
	})
}

// TestPageOfLargeNumbers: an integer that JavaScript would round is shown and written back as it
// is. A browser that cannot keep it refuses.
func TestPageOfLargeNumbers(t *testing.T) {
	programPath(t, "chromium")
	anyDatabase(t, func(t *testing.T, start func(string, ...string) *server) {
		s := start(t.TempDir(), "--enable-crds", "--enable-history")
		s.define(t, `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: meters.factory.example.com}
spec:
  group: factory.example.com
  scope: Namespaced
  names: {plural: meters, singular: meter, kind: Meter, listKind: MeterList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          count: {type: integer, format: int64}
          counts: {type: array, items: {type: integer, format: int64}}
          limit: {type: integer, format: int64}
          unit: {type: string}
`, "meters.factory.example.com")
		const numbers = `"count":1234567890123456789,` +
			`"counts":[-9223372036854775807,9007199254740993],`
		meter := func(limit, unit string) string {
			return `{"apiVersion":"factory.example.com/v1","kind":"Meter",` +
				`"metadata":{"name":"gas"},` + numbers +
				`"limit":` + limit + `,"unit":"` + unit + `"}`
		}
		s.ok(t, meter("9007199254740993", "kWh"), "create", "-f", "-")
		s.ok(t, meter("9007199254740992", "MWh"), "replace", "-f", "-")
		holds := func(when, limit, unit string) {
			t.Helper()
			now := s.ok(t, "", "get", "--raw",
				"/apis/factory.example.com/v1/namespaces/default/meters/gas")
			limit, unit = `"limit":`+limit+`,`, `"unit":"`+unit+`"`
			for _, want := range []string{numbers, limit, unit} {
				if !strings.Contains(now, want) {
					t.Errorf("%s the meter has no %s: %s", when, want, now)
				}
			}
		}
		holds("before the undo", "9007199254740992", "MWh")

		b := openUI(t, s.kubeconfig())
		b.goTo("#/history?group=factory.example.com&resource=meters&of=default&name=gas")
		b.until(`document.querySelectorAll('.rows li').length === 2`)
		// The numbers differ by one, and would be the same if they were rounded.
		b.shows(".state .removed code", "limit: 9007199254740993")
		b.shows(".state .added code", "limit: 9007199254740992")
		b.click(".rows li:last-child")
		for _, line := range []string{
			"count: 1234567890123456789", "- -9223372036854775807", "- 9007199254740993",
		} {
			b.shows(".state .diff", line)
		}
		b.click(".state button.primary")
		b.shows("dialog .removed code", "limit: 9007199254740992")
		b.click("dialog button.primary")
		b.until(`!document.querySelector('dialog')`)
		b.until(`document.querySelectorAll('.rows li').length === 3`)
		holds("after the undo", "9007199254740993", "kWh")

		s.ok(t, "", "delete", "meter", "gas")
		b.shows(".title", "not there now")
		b.shows(".rows li", "delete")
		b.click(".state button.primary")
		b.shows("dialog h2", "Create gas")
		b.click("dialog button.primary")
		b.until(`!document.querySelector('dialog') && !document.querySelector('.title .badge')`)
		holds("created anew,", "9007199254740993", "kWh")

		// An older browser.
		b.click(".rows li:nth-child(2)")
		b.do(chromedp.Evaluate[chromedp.Void]("void (delete JSON.rawJSON)"))
		b.click(".state button.primary")
		b.shows("dialog .problem .said", "rowkeeper undo")
		holds("after a refusal", "9007199254740993", "kWh")
		b.click("dialog footer button:first-child")
		s.ok(t, "", "label", "meter", "gas", "a=b")
		b.shows("main .problem .said", "rowkeeper undo")
	})
}

// TestPageRefused: whoever may not see a history is told which right is missing, and sees it when
// the right is there.
func TestPageRefused(t *testing.T) {
	programPath(t, "chromium")
	anyDatabase(t, func(t *testing.T, start func(string, ...string) *server) {
		s := start(t.TempDir(), "--enable-crds", "--enable-history")
		s.ok(t, manifest("hello", "make"), "create", "-f", "-")
		jane := s.userFile(t, "jane")
		b := openUI(t, jane)
		b.goTo(helloPage)
		b.shows("aside .problem .said", `User "jane" cannot list resource "pipelines"`)
		b.shows("aside .problem .no", "list pipelines everywhere is missing")

		s.ok(t, "", "create", "clusterrole", "reader", "--verb=get,list,watch", "--resource=pipelines")
		s.ok(t, "", "create", "clusterrolebinding", "jane", "--clusterrole=reader", "--user=jane")
		b.do(chromedp.Reload())
		b.shows(".row", "hello")
		b.shows("main .problem .said", "jane")
		b.shows("main .problem .no", `get pipelines/history "hello" in the namespace default is missing`)
		b.shows("main .problem .yes", `get pipelines "hello" in the namespace default is there`)
		b.shows("main .problem pre", `resources: ["pipelines/history"]`)

		s.ok(t, "", "create", "clusterrole", "historian", "--verb=get", "--resource=pipelines/history")
		s.ok(t, "", "create", "clusterrolebinding", "jane-sees", "--clusterrole=historian", "--user=jane")
		b.do(chromedp.Reload())
		b.shows(".rows li", "create")

		b.goTo("#/server")
		b.shows("main .problem h3", "You may not see the server's metrics")
	})
}

// TestPageWithoutHistory: a server that shows no history says which flag turns it on.
func TestPageWithoutHistory(t *testing.T) {
	programPath(t, "chromium")
	s := start(t, t.TempDir(), "--enable-history=false")
	s.ok(t, manifest("hello", "make"), "create", "-f", "-")
	b := openUI(t, s.kubeconfig())
	b.goTo(helloPage)
	b.shows("main .problem", "--enable-history")
}

// TestPageOfMany: a hundred thousand objects scroll and are found, and those that nobody has looked
// at are not loaded. The server is one that makes the objects up.
func TestPageOfMany(t *testing.T) {
	programPath(t, "chromium")
	const many = 100_000
	var pages atomic.Int64
	events := make(chan string)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		query := r.URL.Query()
		switch {
		case r.URL.Path == "/apis":
			fmt.Fprint(w, `{"kind":"APIGroupDiscoveryList","items":[{"metadata":{"name":"ci.example.com"},
				"versions":[{"version":"v1","resources":[{"resource":"jobs","scope":"Namespaced",
				"responseKind":{"kind":"Job"},"verbs":["get","list","watch"]}]}]}]}`)
		case r.URL.Path == "/apis/ci.example.com/v1/jobs" && query.Get("watch") != "":
			w.WriteHeader(http.StatusOK)
			for {
				w.(http.Flusher).Flush()
				select {
				case event := <-events:
					fmt.Fprintln(w, event)
				case <-r.Context().Done():
					return
				}
			}
		case r.URL.Path == "/apis/ci.example.com/v1/jobs":
			pages.Add(1)
			from, _ := strconv.Atoi(query.Get("continue"))
			limit, err := strconv.Atoi(query.Get("limit"))
			if err != nil {
				http.Error(w, "a list without a limit", http.StatusBadRequest)
				return
			}
			list := metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
			for i := from; i < min(from+limit, many); i++ {
				list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
					Namespace: "a", Name: fmt.Sprintf("job-%06d", i)}})
			}
			if from+limit < many {
				left := int64(many - from - limit)
				list.Continue, list.RemainingItemCount = strconv.Itoa(from+limit), &left
			}
			if err := json.NewEncoder(w).Encode(list); err != nil {
				return // the browser has gone on to something else
			}
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(upstream.Close)
	t.Cleanup(upstream.CloseClientConnections)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: many, cluster: {server: %q}}]
contexts: [{name: many, context: {cluster: many}}]
current-context: many
`, upstream.URL), 0o600); err != nil {
		t.Fatal(err)
	}

	b := openUI(t, kubeconfig)
	b.goTo("#/history?group=ci.example.com&resource=jobs")
	b.shows(".count", "100,000 objects")
	b.shows(".row", "job-000000")
	few := `document.querySelectorAll('.row').length < 100`
	b.until(few)
	b.until(`document.querySelector('.list').scrollHeight === 30 * 100000`)
	if n := pages.Load(); n > 4 {
		t.Errorf("%d pages are loaded before anybody has scrolled", n)
	}

	b.press(".list", kb.PageDown+kb.PageDown)
	b.until(`/job-0000[3-9]/.test(document.querySelector('.row.active').innerText)`)
	b.press(".list", kb.End)
	b.shows(".row.active", "job-099999")
	b.until(few)
	events <- `{"type":"ADDED","object":{"metadata":{"namespace":"a","name":"job-0500005","resourceVersion":"2"}}}`
	b.shows(".count", "100,001 objects")
	events <- `{"type":"DELETED","object":{"metadata":{"namespace":"a","name":"job-000000","resourceVersion":"3"}}}`
	b.shows(".count", "100,000 objects")

	b.press("input[type=search]", "0500005")
	b.shows(".count", "1 of 100,000")
	b.press(".list", kb.Enter)
	b.shows(".title h1", "job-0500005")
}
