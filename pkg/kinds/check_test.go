package kinds_test

import (
	"encoding/json"
	"fmt"
	"math/big"
	"net/netip"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"

	"github.com/rowkeeper/rowkeeper/pkg/kinds"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// Holder is a kind whose spec is S.
type Holder[S any] struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec S `json:"spec"`
}

func (h *Holder[S]) DeepCopyObject() runtime.Object { return kinds.DeepCopy(h) }

// holding returns what New says of a kind whose spec is S.
func holding[S any]() error {
	_, err := kinds.New(kinds.Group{Name: "example.com", Versions: []string{"v1"},
		Kinds: []kinds.Definition{
			kinds.Define(kinds.Kind[Holder[S]]{Name: "Holder"}),
		}})
	return err
}

// inside has all that is not refused.
type inside struct {
	Quantity resource.Quantity    `json:"quantity,omitempty"`
	Time     *metav1.Time         `json:"time,omitempty"`
	Micro    metav1.MicroTime     `json:"micro,omitempty"`
	Plain    time.Time            `json:"plain,omitempty"`
	Port     *intstr.IntOrString  `json:"port,omitempty"`
	Big      *big.Int             `json:"big,omitempty"`
	Any      any                  `json:"any,omitempty"`
	Map      map[string]any       `json:"map,omitempty"`
	ByWord   map[word]string      `json:"byWord,omitempty"`
	Bytes    []byte               `json:"bytes,omitempty"`
	Numbers  []uint32             `json:"numbers,omitempty"`
	Float    *float32             `json:"float,omitempty"`
	BigValue big.Int              `json:"bigValue,omitempty"`
	Raw      runtime.RawExtension `json:"raw,omitempty"`
	*Embedded
	Secret  *hidden       `json:"secret,omitempty"`
	Ignored func()        `json:"-"`
	Again   *inside       `json:"again,omitempty"`
	Merged  []*item       `json:"merged,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
	Set     []metav1.Time `json:"set,omitempty" patchStrategy:"merge"`
	embeddedPart
}

type word string

// Embedded has its fields in another struct.
type Embedded struct {
	Flag bool `json:"flag,omitempty"`
}

type embeddedPart struct {
	Word string `json:"word,omitempty"`
}

// hidden writes and reads what it hides.
type hidden struct{ words []string }

func (h hidden) MarshalJSON() ([]byte, error)     { return json.Marshal(h.words) }
func (h *hidden) UnmarshalJSON(data []byte) error { return json.Unmarshal(data, &h.words) }

type (
	unexported struct{ note string }
	mixed      struct {
		URL  string `json:"url"`
		name string
	}
	nested          struct{ List []map[string]*unexported }
	writesOnly      struct{ words []string }
	embeddedPointer struct{ *embeddedPart }
	function        struct{ Call func() }
	channel         struct{ Events chan int }
	complexNumber   struct{ Number complex128 }
	keyed           struct{ ByPoint map[[2]int]string }
	array           struct{ Pair [2]int }
	blank           struct{ _ struct{} }
	ignored         struct {
		lock int `json:"-"`
	}
	Endless  struct{ *Again }
	Again    struct{ *Endless }
	texts    struct{ Address netip.Addr }
	stringer struct{ Text fmt.Stringer }
	item     struct {
		Name  string   `json:"name"`
		Parts []string `json:"parts"`
	}
	wrongStrategy struct {
		List []item `patchStrategy:"append"`
	}
	noKey struct {
		List []item `json:"list" patchStrategy:"merge"`
	}
	missingKey struct {
		List []*item `json:"list" patchStrategy:"merge" patchMergeKey:"nam"`
	}
	listKey struct {
		List []item `json:"list" patchStrategy:"merge" patchMergeKey:"parts"`
	}
	wordKey struct {
		List []string `json:"list" patchStrategy:"merge" patchMergeKey:"name"`
	}
	lists struct {
		List [][]string `json:"list" patchStrategy:"merge"`
	}
	loneKey struct {
		List []item `json:"list" patchMergeKey:"name"`
	}
	twice struct {
		Same  string
		Other string `json:"Same"`
	}
)

func (w writesOnly) MarshalJSON() ([]byte, error) { return json.Marshal(w.words) }

func TestFieldsThatJSONCannotHold(t *testing.T) {
	if _, notUsed := (mixed{}).name, (unexported{}).note; notUsed != "" || (ignored{}).lock != 0 {
		t.Fatal(notUsed)
	}
	if err := holding[inside](); err != nil {
		t.Errorf("what can be stored is refused: %v", err)
	}
	for name, err := range map[string]error{
		"PodSpec": holding[corev1.PodSpec](), "DeploymentSpec": holding[appsv1.DeploymentSpec](),
		"[]Condition":          holding[[]metav1.Condition](),
		"PersistentVolumeSpec": holding[corev1.PersistentVolumeSpec](),
		"ServiceSpec":          holding[corev1.ServiceSpec](),
		"JSON":                 holding[apiextensionsv1.JSONSchemaProps](),
	} {
		if err != nil {
			t.Errorf("%s is refused: %v", name, err)
		}
	}
	for want, err := range map[string]error{
		"the field note of kinds_test.unexported is not exported, so that it would not be " +
			"stored: export it": holding[unexported](),
		"the field name of kinds_test.mixed is not exported":        holding[mixed](),
		"the field note of kinds_test.unexported is not exported, ": holding[nested](),
		"the field words of kinds_test.writesOnly is not exported":  holding[writesOnly](),
		"the field embeddedPart of kinds_test.embeddedPointer is embedded and not exported, so " +
			"that JSON cannot be decoded into it": holding[embeddedPointer](),
		"the field Call of kinds_test.function is of type func(), which JSON cannot hold":                                 holding[function](),
		"the field Events of kinds_test.channel is of type chan int":                                                      holding[channel](),
		"the field Number of kinds_test.complexNumber is of type complex128":                                              holding[complexNumber](),
		"the field ByPoint of kinds_test.keyed has keys of type [2]int, and JSON and server-side apply know strings only": holding[keyed](),
		"the field Address of kinds_test.texts is of type netip.Addr, which writes itself as " +
			"text, and server-side apply cannot read that": holding[texts](),
		"kinds_test.Endless embeds itself, so that its fields in JSON have no end: give the " +
			"field a name": holding[Endless](),
		"the field Pair of kinds_test.array is of the array type [2]int, which server-side apply cannot read: use a slice": holding[array](),
		"the field _ of kinds_test.blank is not exported":                                                                  holding[blank](),
		"the field lock of kinds_test.ignored is not exported":                                                             holding[ignored](),
		"the field Text of kinds_test.stringer is of the interface type fmt.Stringer, into which " +
			"JSON cannot be decoded: use a struct,": holding[stringer](),
		`the field List of kinds_test.wrongStrategy has the patchStrategy "append"`:                                                holding[wrongStrategy](),
		"the field List of kinds_test.noKey is merged, and has no patchMergeKey":                                                   holding[noKey](),
		`the field List of kinds_test.missingKey is merged by "nam", which is not a string, a number or a bool in kinds_test.item`: holding[missingKey](),
		`the field List of kinds_test.listKey is merged by "parts", which is not a string`:                                         holding[listKey](),
		"the field List of kinds_test.wordKey has a patchMergeKey, and its elements, of type " +
			"string, have no fields": holding[wordKey](),
		"the field List of kinds_test.lists cannot be merged, as its elements are of type []string":                holding[lists](),
		`the field List of kinds_test.loneKey has a patchMergeKey, which is for lists with patchStrategy:"merge"`:  holding[loneKey](),
		`the field Other of kinds_test.twice is "Same" in JSON, as the field Same is: give each a name of its own`: holding[twice](),
	} {
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), "the kind Holder of group example.com cannot be") {
			t.Errorf("the error is\n%v\nwant\n%s", err, want)
		}
	}
}

// TestGenerationOfOpaqueValues changes values that have unexported fields, and leaves them as they
// are: only changes count.
func TestGenerationOfOpaqueValues(t *testing.T) {
	api, err := kinds.New(kinds.Group{Name: "example.com", Versions: []string{"v1"},
		Kinds: []kinds.Definition{
			kinds.Define(kinds.Kind[Holder[inside]]{Name: "Holder"}),
		}})
	if err != nil {
		t.Fatal(err)
	}
	s := testkit.Start(t, testkit.API{Scheme: api.Scheme, Codecs: api.Codecs,
		NewConfig: api.NewConfig, New: api.New}, testkit.Options{Database: testkit.Memory})
	c := dynamic.NewForConfigOrDie(s.Config).Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "holders"}).Namespace("default")
	_, err = c.Apply(t.Context(), "one", &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Holder", "metadata": map[string]any{"name": "one"},
		"spec": map[string]any{
			"quantity": "1500m", "time": "2026-01-02T03:04:05Z",
			"micro": "2026-01-02T03:04:05.000006Z", "plain": "2026-01-02T03:04:05Z", "port": "http",
			"big": int64(12345678901), "any": []any{"a", int64(1)},
			"map":    map[string]any{"a": map[string]any{"b": 1.5}},
			"byWord": map[string]any{"7": "seven"}, "bytes": "AAEC", "numbers": []any{int64(1)},
			"float": 0.5, "bigValue": int64(98765432109876543), "raw": map[string]any{"a": "b"},
			"flag": true, "secret": []any{"x"}, "word": "w",
			"again": map[string]any{"secret": []any{"y"}},
		},
	}}, metav1.ApplyOptions{FieldManager: "test"})
	if err != nil {
		t.Fatal(err)
	}
	// Lists are merged by their keys, in all the ways in which a client can do that.
	for _, name := range []string{"a", "b"} {
		if _, err := c.Patch(t.Context(), "one", types.StrategicMergePatchType,
			[]byte(`{"spec": {"merged": [{"name": "`+name+`", "parts": ["x"]}]}}`),
			metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	applied, err := c.Apply(t.Context(), "one", &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Holder", "metadata": map[string]any{"name": "one"},
		"spec": map[string]any{"merged": []any{map[string]any{"name": "c", "parts": []any{}}},
			"any": []any{"b"}, "set": []any{"2026-01-02T03:04:05Z"}},
	}}, metav1.ApplyOptions{FieldManager: "other", Force: true})
	if err != nil {
		t.Fatal(err)
	}
	if merged, _, err := unstructured.NestedSlice(applied.Object, "spec", "merged"); err != nil ||
		len(merged) != 3 {
		t.Errorf("the merged list is %v, %v", merged, err)
	}
	want := applied.GetGeneration()
	for _, step := range []struct {
		spec    string
		changes bool
	}{
		{`{"quantity": "2"}`, true},
		{`{"quantity": "2000m"}`, false}, // is the same quantity
		{`{"time": "2026-01-02T03:04:06Z"}`, true},
		{`{"time": "2026-01-02T04:04:06+01:00"}`, false},
		{`{"micro": "2026-01-02T03:04:05.000007Z"}`, true},
		{`{"plain": "2026-01-02T03:04:06Z"}`, true},
		{`{"port": 80}`, true},
		{`{"big": 12345678902}`, true},
		{`{"any": ["a", 2]}`, true},
		{`{"any": ["a", 2]}`, false},
		{`{"map": {"a": {"b": 2.5}}}`, true},
		{`{"secret": ["x", "y"]}`, true},
		{`{"secret": ["x", "y"]}`, false},
		{`{"again": {"secret": ["z"]}}`, true},
		{`{"word": "other"}`, true},
		{`{"byWord": {"8": "eight"}}`, true},
		{`{"bytes": "AAEE"}`, true},
		{`{"bigValue": 98765432109876544}`, true},
		{`{"raw": {"a": "c"}}`, true},
		{`{"flag": false}`, true},
	} {
		if step.changes {
			want++
		}
		// The label makes it a write in any case.
		patch := fmt.Sprintf(`{"metadata": {"labels": {"step": "%d"}}, "spec": %s}`,
			want, step.spec)
		for _, p := range []string{patch, `{"metadata": {"labels": {"again": "` + fmt.Sprint(want) +
			`"}}}`} {
			o, err := c.Patch(t.Context(), "one", types.MergePatchType, []byte(p),
				metav1.PatchOptions{})
			if err != nil || o.GetGeneration() != want {
				t.Fatalf("after %s the generation is not %d: %+v, %v", p, want, o, err)
			}
		}
	}
}

// TestTimeIsOver writes objects whose time is over already: they are gone at the first opportunity.
func TestTimeIsOver(t *testing.T) {
	_, s := start(t, testkit.Options{FakeClock: true})
	c := bookmarks(s, "v1")
	for name, keepFor := range map[string]string{"over": "-1h", "kept": "1h"} {
		if _, err := c.Create(t.Context(), bookmark(name, map[string]any{"url": "https://go.dev",
			"keepFor": keepFor}), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Create(t.Context(), bookmark("late", map[string]any{"url": "https://go.dev",
		"keepFor": "1h"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Patch(t.Context(), "late", types.MergePatchType,
		[]byte(`{"spec": {"keepFor": "-1ns"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Advance(time.Second)
	list, err := c.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetName() != "kept" {
		t.Errorf("after a second there are %v, %v", list, err)
	}
}
