package options_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// TestSortedLists goes through the pages of a sorted list by the header Link.
func TestSortedLists(t *testing.T) {
	url := "sqlite:" + filepath.Join(t.TempDir(), "notes.db")
	o := testkit.Options{Prefix: "/notes",
		Database: testkit.Database{URL: url, Driver: sqlite.Driver}}
	s := start(t, o, nil)
	for i := range 5 {
		n := note(fmt.Sprint("n", i))
		n.SetLabels(map[string]string{"priority": fmt.Sprint(12 - 3*i)})
		if _, err := client(s.Config).Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const path = "/apis/notes.example.com/v1/namespaces/default/notes"
	if status, body := get(t, s, path+"?sortBy=label:priority"); status != http.StatusBadRequest ||
		!strings.Contains(body, "no index") {
		t.Errorf("without an index: %d, %s", status, body)
	}
	s.Stop()
	if err := storage.AddIndex(t.Context(), storage.Config{URL: url,
		Drivers: []storage.Driver{sqlite.Driver}}, "/notes", notes.GroupResource(),
		"label:priority"); err != nil {
		t.Fatal(err)
	}
	s = start(t, o, nil)
	eventually(t, "the index to be built", func() bool {
		status, _ := get(t, s, path+"?sortBy=label:priority")
		return status == http.StatusOK
	})
	link := regexp.MustCompile(`^<(/[^>]*)>; rel="(next|prev)"$`)
	page := func(path string) (names []string, links map[string]string) {
		t.Helper()
		code, header, body := ask(t, s, path)
		var list unstructured.UnstructuredList
		if err := json.Unmarshal([]byte(body), &list); err != nil || code != http.StatusOK {
			t.Fatalf("%s: %d, %v", path, code, err)
		}
		for _, n := range list.Items {
			names = append(names, n.GetName())
		}
		links = map[string]string{}
		for _, l := range header.Values("Link") {
			found := link.FindStringSubmatch(l)
			if found == nil {
				t.Fatalf("the link %s", l)
			}
			links[found[2]] = found[1]
		}
		return names, links
	}
	want := [][]string{{"n0", "n1"}, {"n2", "n3"}, {"n4"}}
	next := path + "?sortBy=label:priority&order=desc&limit=2&resourceVersion=0"
	for i, names := range want {
		got, links := page(next)
		if !slices.Equal(got, names) {
			t.Errorf("page %d has %q", i, got)
		}
		if (links["next"] == "") != (i == 2) || (links["prev"] == "") != (i == 0) {
			t.Fatalf("page %d has the links %q", i, links)
		}
		if i > 0 {
			if got, _ := page(links["prev"]); !slices.Equal(got, want[i-1]) {
				t.Errorf("before page %d is %q", i, got)
			}
		}
		next = links["next"]
	}
	for what, path := range map[string]string{
		"another order":  path + "?sortBy=label:priority&order=up",
		"one object":     path + "/n1?sortBy=label:priority",
		"a watch":        path + "?watch=1&sortBy=label:priority",
		"another thing":  "/version?sortBy=label:priority",
		"a wrong token":  path + "?sortBy=label:priority&continue=x",
		"nothing at all": path + "?sortBy=",
	} {
		if status, body := get(t, s, path); status != http.StatusBadRequest ||
			!strings.Contains(body, `"Status"`) {
			t.Errorf("%s: %d, %s", what, status, body)
		}
	}
}
