package history

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// answers makes a client of a server that gives one answer after the other. It returns the
// parameters of the requests, too.
func answers(t *testing.T, code int, all ...string) (*client, *[]url.Values) {
	t.Helper()
	asked := &[]url.Values{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if len(*asked) == len(all) {
			code = http.StatusTeapot
		}
		w.WriteHeader(code)
		if *asked = append(*asked, r.URL.Query()); len(*asked) <= len(all) {
			fmt.Fprint(w, all[len(*asked)-1])
		}
	}))
	t.Cleanup(s.Close)
	c := &client{}
	if err := c.dial(&rest.Config{Host: s.URL}); err != nil {
		t.Fatal(err)
	}
	return c, asked
}

// lamps are what the tests ask for.
var lamps = &target{gvr: schema.GroupVersionResource{Group: "home.example.com", Version: "v1",
	Resource: "lamps"}, scoped: true, namespace: "default"}

// page is an answer.
func page(metadata string, items ...string) string {
	return `{"kind":"ObjectHistory","oldest":"1","metadata":{` + metadata + `},"items":[` +
		strings.Join(items, ",") + `]}`
}

// TestIntegers: an integer that no float64 has stays what it is.
func TestIntegers(t *testing.T) {
	c, _ := answers(t, 200, page(``, `{"revision":"5","object":{"serial":1234567890123456789}}`),
		`{"kind":"Table","rows":[{"cells":[1234567890123456789]}]}`)
	state, err := c.at(t.Context(), lamps.of("default", "one"), "5")
	if err != nil || state.Object["serial"] != int64(1234567890123456789) {
		t.Fatalf("the object is %+v, %v", state, err)
	}
	for _, format := range []string{"yaml", "json"} {
		var out bytes.Buffer
		if err := encode(&out, format, state.Object); err != nil ||
			!strings.Contains(out.String(), ": 1234567890123456789\n") {
			t.Errorf("as %s it is %s, %v", format, out.String(), err)
		}
	}
	if l := lines(state.Object); len(l) == 0 || l[len(l)-1] != "serial: 1234567890123456789\n" {
		t.Errorf("the lines are %q", l)
	}
	table, err := c.table(t.Context(), lamps, "5", "")
	if err != nil || fmt.Sprint(table.Rows[0].Cells[0]) != "1234567890123456789" {
		t.Errorf("the table is %+v, %v", table, err)
	}
}

// TestPages: further pages are of the same moments as the first one, and changes are whole only if
// each page says so.
func TestPages(t *testing.T) {
	first := page(`"since":"5","until":"9","continue":"a"`, `{"revision":"9"}`)
	for second, since := range map[string]string{
		page(`"since":"5","until":"9"`, `{"revision":"7"}`): "5",
		page(`"until":"9"`): "",
	} {
		c, asked := answers(t, 200, first, second)
		all, err := c.changes(t.Context(), lamps, map[string]string{"since": "10m0s", "until": "0s"}, 0)
		if err != nil || all.Metadata.Since != since || all.Metadata.Until != "9" {
			t.Errorf("the changes are %+v, %v", all, err)
		}
		if q := (*asked)[1]; q.Get("since") != "5" || q.Get("until") != "9" || q.Get("continue") != "a" {
			t.Errorf("the second page was asked for by %v", q)
		}
	}
	// Where some changes are enough, an empty page ends the search for older ones.
	for first, want := range map[string]int{
		page(`"continue":"a"`, `{"revision":"9"}`): 2,
		page(`"continue":"a"`):                     3,
	} {
		c, asked := answers(t, 200, first, page(`"continue":"b"`), page(``))
		if _, err := c.changes(t.Context(), lamps, map[string]string{}, 20); err != nil ||
			len(*asked) != want {
			t.Errorf("after %s, %d pages were read, %v", first, len(*asked), err)
		}
	}
}

// TestNotThere: that an object was not there is told by a cause only. A server without histories
// answers in the same words.
func TestNotThere(t *testing.T) {
	status := func(causes string) string {
		return `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,` +
			`"message":"lamps.home.example.com \"one\" not found","details":{"name":"one","causes":[` +
			causes + `]}}`
	}
	one := lamps.of("default", "one")
	c, _ := answers(t, 404, status(`{"reason":"NoState"}`), status(``))
	if state, err := c.at(t.Context(), one, "5"); state != nil || err != nil {
		t.Errorf("an object that was not there is %+v, %v", state, err)
	}
	var none errNoHistory
	if state, err := c.at(t.Context(), one, "5"); !errors.As(err, &none) {
		t.Errorf("an object of a server without histories is %+v, %v", state, err)
	}
}

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{"ä b": "ä b", "a\x1b[2Jb\tc\n'": `a\x1b[2Jb\tc\n'`} {
		if got := printable(text); got != want {
			t.Errorf("%q is shown as %q", text, got)
		}
	}
}
