package history

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func object(data map[string]any) map[string]any {
	return map[string]any{"kind": "ConfigMap", "metadata": map[string]any{"name": "a",
		"resourceVersion": "1", "managedFields": []any{}}, "data": data}
}

// TestDiff: a diff shows what is different, and however large the objects are, not much more.
func TestDiff(t *testing.T) {
	diff := func(before, after map[string]any) string {
		t.Helper()
		var out bytes.Buffer
		different, err := writeDiff(&out, "before", "after", before, after)
		if err != nil || different != (out.Len() > 0) {
			t.Fatalf("%t, %v", different, err)
		}
		return out.String()
	}
	if d := diff(object(map[string]any{"k": "1"}), object(map[string]any{"k": "2"})); !strings.Contains(d,
		"-  k: \"1\"\n+  k: \"2\"\n") || strings.Contains(d, "resourceVersion") {
		t.Errorf("the diff is\n%s", d)
	}
	if d := diff(object(nil), object(nil)); d != "" {
		t.Errorf("there is a difference:\n%s", d)
	}
	if d := diff(nil, object(nil)); !strings.Contains(d, "+kind: ConfigMap\n") {
		t.Errorf("of a new object the diff is\n%s", d)
	}
	if d := diff(object(map[string]any{"k": strings.Repeat("ä", 500_000) + "1"}),
		object(map[string]any{"k": strings.Repeat("ä", 500_000) + "2"})); d == "" || len(d) > 2000 {
		t.Errorf("the diff of long lines has %d bytes", len(d))
	}
	many := func(first int) map[string]any {
		data := map[string]any{}
		for i := range 20_000 {
			data[fmt.Sprint("k", i)] = fmt.Sprint(first + i)
		}
		return object(data)
	}
	if d := diff(many(0), many(1)); !strings.Contains(d, "too many to compare") || len(d) > 2000 {
		t.Errorf("the diff of many lines is\n%.2000s", d)
	}
	if d := diff(many(0), many(0)); d != "" {
		t.Errorf("there is a difference:\n%.2000s", d)
	}
}

// TestUndone: undo takes what was there before, and keeps what is not the user's.
func TestUndone(t *testing.T) {
	current := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Thing",
		"metadata": map[string]any{"name": "a", "uid": "now", "resourceVersion": "9",
			"labels": map[string]any{"new": "1"}, "annotations": map[string]any{"new": "1"},
			"finalizers": []any{"f"}, "ownerReferences": []any{map[string]any{"uid": "o"}}},
		"spec": map[string]any{"n": int64(2)}, "added": "x", "status": map[string]any{"ok": true}}}
	old := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Thing",
		"metadata": map[string]any{"name": "a", "uid": "then", "resourceVersion": "3",
			"labels": map[string]any{"old": "1"}, "finalizers": []any{"g"}},
		"spec": map[string]any{"n": int64(1)}, "data": "y", "status": map[string]any{"ok": false}}}
	before := old.DeepCopy()
	n := undone(current, old)
	want := map[string]any{"apiVersion": "v1", "kind": "Thing",
		"metadata": map[string]any{"name": "a", "uid": "now", "resourceVersion": "9",
			"labels": map[string]any{"old": "1"}, "finalizers": []any{"f"},
			"ownerReferences": []any{map[string]any{"uid": "o"}}},
		"spec": map[string]any{"n": int64(1)}, "data": "y", "status": map[string]any{"ok": true}}
	if fmt.Sprint(n.Object) != fmt.Sprint(want) {
		t.Errorf("the object is\n%v\nnot\n%v", n.Object, want)
	}
	if fmt.Sprint(old.Object) != fmt.Sprint(before.Object) {
		t.Error("the old state was changed")
	}
}
