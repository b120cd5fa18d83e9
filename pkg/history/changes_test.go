package history

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/rowkeeper/rowkeeper/storage"
)

func TestChanged(t *testing.T) {
	object := func(text string) (o map[string]any) {
		if err := utiljson.Unmarshal([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	for _, test := range []struct {
		before, after string
		want          []string
	}{
		{`{}`, `{}`, []string{}},
		{`{"spec":{"n":1}}`, `{"spec":{"n":1}}`, []string{}},
		{`{"spec":{"n":1}}`, `{"spec":{"n":2}}`, []string{"spec.n"}},
		{`{"spec":{"n":1}}`, `{"spec":{"n":1.5}}`, []string{"spec.n"}},
		{`{"spec":{"n":1}}`, `{"spec":{"n":"1"}}`, []string{"spec.n"}},
		{`{"spec":{"n":1}}`, `{"spec":{"m":1}}`, []string{"spec.m", "spec.n"}},
		{`{"spec":{"n":null}}`, `{"spec":{}}`, []string{"spec.n"}},
		{`{"spec":{"n":{}}}`, `{"spec":{"n":[]}}`, []string{"spec.n"}},
		{`{"a":[{"b":1},{"b":2}]}`, `{"a":[{"b":1},{"b":3},4]}`, []string{"a[1].b", "a[2]"}},
		{`{"a":[1,2]}`, `{"a":[2]}`, []string{"a[0]", "a[1]"}},
		{`{"metadata":{"labels":{"a.b/c":"1","d":"1","":"1"}}}`, `{"metadata":{"labels":{}}}`,
			[]string{`metadata.labels[""]`, `metadata.labels["a.b/c"]`, `metadata.labels.d`}},
		{`{"metadata":{"resourceVersion":"1","managedFields":[],"uid":"a"}}`,
			`{"metadata":{"resourceVersion":"2","managedFields":[{}],"uid":"b"}}`, []string{"metadata.uid"}},
	} {
		if got := Changed(object(test.before), object(test.after)); !slices.Equal(got, test.want) {
			t.Errorf("from %s to %s, %q have changed, not %q", test.before, test.after, got, test.want)
		}
	}
	// However much has changed, what is told is bounded.
	before, after := map[string]any{}, map[string]any{}
	for i := range 1000 {
		before[fmt.Sprintf("a%03d", i)] = int64(i)
		after[fmt.Sprintf("b%03d", i)] = []any{int64(i)}
	}
	for _, n := range []int{99, 100, 101} {
		few := map[string]any{}
		for i := range n {
			few[fmt.Sprintf("a%03d", i)] = "x"
		}
		want := min(n, 101)
		if got := Changed(few, nil); len(got) != want || (got[len(got)-1] == "…") != (n > 100) {
			t.Errorf("of %d fields, %d are told, the last as %q", n, len(got), got[len(got)-1])
		}
	}
	if got := Changed(before, after); len(got) != 101 || got[100] != "…" {
		t.Errorf("%d paths are told", len(got))
	}
	for _, long := range []string{strings.Repeat("x", 1000), strings.Repeat("ä.", 1000)} {
		deep := func(value any) map[string]any {
			return map[string]any{long: map[string]any{long: value}}
		}
		got := Changed(deep("1"), deep("2"))
		if len(got) != 1 || len(got[0]) > longestPath+len("…") || len(got[0]) < longestPath-3 ||
			!strings.HasSuffix(got[0], "…") || !utf8.ValidString(got[0]) {
			t.Errorf("a long path is told as %q", got)
		}
	}
}

// TestChangedOfLongNames: to compare what is below a long name takes no copy of it for each value.
func TestChangedOfLongNames(t *testing.T) {
	leaves := func(last string) map[string]any {
		values := make([]any, 20_000)
		for i := range values {
			values[i] = "same"
		}
		values[len(values)-1] = last
		return map[string]any{strings.Repeat("x", 1<<20): values}
	}
	before, after := leaves("a"), leaves("b")
	var began, ended runtime.MemStats
	runtime.ReadMemStats(&began)
	Changed(before, after)
	runtime.ReadMemStats(&ended)
	if bytes := ended.TotalAlloc - began.TotalAlloc; bytes > 1<<20 {
		t.Errorf("a comparison allocates %d bytes", bytes)
	}
}

// TestChangesOfOtherVersions: between a state as it is stored and one in the requested version,
// there is nothing to compare.
func TestChangesOfOtherVersions(t *testing.T) {
	of := func(version, image string, stored bool) *state {
		return &state{stored: stored, object: unstructured.Unstructured{Object: map[string]any{
			"apiVersion": version, "spec": map[string]any{"image": image},
			"metadata": map[string]any{"managedFields": []any{map[string]any{"manager": image}}}}}}
	}
	for _, test := range []struct {
		before, after *state
		want          int
	}{
		{of("v1", "a", false), of("v1", "b", false), 1},
		{of("v1", "a", true), of("v1", "b", true), 1},
		{of("v1", "a", true), of("v1", "b", false), 0},
		{of("v1", "a", true), of("v2", "b", true), 0},
	} {
		c := changeOf(&storage.Change{}, test.before, test.after)
		if len(c.Changed) != test.want || (c.Manager != "") != (test.want > 0) {
			t.Errorf("from %v to %v, %q has changed %q", test.before, test.after, c.Manager, c.Changed)
		}
	}
}

func TestManager(t *testing.T) {
	entry := func(manager string, minute int, fields string) metav1.ManagedFieldsEntry {
		at := metav1.NewTime(time.Unix(int64(60*minute), 0))
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: "Update", Time: &at,
			FieldsV1: metav1.NewFieldsV1(fields)}
	}
	a, b := entry("a", 1, "{}"), entry("b", 2, "{}")
	for _, test := range []struct {
		before, after []metav1.ManagedFieldsEntry
		want          string
	}{
		{nil, nil, ""},
		{nil, []metav1.ManagedFieldsEntry{a, b}, "b"},
		{[]metav1.ManagedFieldsEntry{a, b}, []metav1.ManagedFieldsEntry{a, b}, ""},
		{[]metav1.ManagedFieldsEntry{a, b}, []metav1.ManagedFieldsEntry{b}, ""},
		{[]metav1.ManagedFieldsEntry{a, b}, []metav1.ManagedFieldsEntry{entry("a", 3, "{}"), b}, "a"},
		// Somebody took a field from b, whose entry keeps its time.
		{[]metav1.ManagedFieldsEntry{a, b},
			[]metav1.ManagedFieldsEntry{a, entry("b", 2, `{"x":{}}`), entry("c", 4, "{}")}, "c"},
		// Within a second, b takes a field from a.
		{[]metav1.ManagedFieldsEntry{entry("a", 1, `{"x":{},"y":{"z":{}}}`), entry("b", 1, `{"y":{}}`)},
			[]metav1.ManagedFieldsEntry{entry("a", 1, `{"x":{}}`), entry("b", 1, `{"y":{"z":{}}}`)}, "b"},
		// Two writes of a manager within a second differ in their fields.
		{[]metav1.ManagedFieldsEntry{a}, []metav1.ManagedFieldsEntry{entry("a", 1, `{"x":{}}`)}, "a"},
	} {
		if got := managerOf(test.before, test.after); got != test.want {
			t.Errorf("from %v to %v the manager is %q, not %q", test.before, test.after, got, test.want)
		}
	}
}

func TestMoment(t *testing.T) {
	when := time.Date(2026, 11, 29, 12, 0, 0, 5000, time.UTC)
	for text, want := range map[string]storage.Moment{
		"17":                               {Revision: 17},
		"10m":                              {Ago: 10 * time.Minute},
		"0s":                               {},
		"2026-11-29T12:00:00.000005Z":      {Time: when},
		"2026-11-29T13:00:00.000005+01:00": {Time: when},
	} {
		got, err := momentOf(text)
		if err != nil || got.Revision != want.Revision || got.Ago != want.Ago ||
			!got.Time.Equal(want.Time) {
			t.Errorf("%q is %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "-10m", "yesterday", "9223372036854775808",
		"2026-11-29", "0001-01-01T00:00:00Z"} {
		if got, err := momentOf(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}
