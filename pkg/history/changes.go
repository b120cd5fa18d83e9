package history

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/rowkeeper/rowkeeper/pkg/history/v1alpha1"
	"github.com/rowkeeper/rowkeeper/storage"
)

// objects are a list as the registry has encoded it.
type objects struct {
	Kind     string          `json:"kind"`
	Metadata metav1.ListMeta `json:"metadata"`
	Items    []raw           `json:"items"`
}

// raw keeps an item until it is known which it is.
type raw = json.RawMessage

// state is a state of an object in the requested version, or as it is stored.
type state struct {
	object unstructured.Unstructured
	stored bool
	err    string
}

// history puts together what the storage has told and what the registry has encoded.
func (q *query) history(list *objects, withObjects bool) (*v1alpha1.ObjectHistory, error) {
	answer := &v1alpha1.ObjectHistory{
		TypeMeta: metav1.TypeMeta{Kind: v1alpha1.Kind, APIVersion: v1alpha1.APIVersion},
		Metadata: v1alpha1.Metadata{ResourceVersion: list.Metadata.ResourceVersion,
			Continue: q.page.Continue, Omitted: q.page.Omitted, Since: revision(q.page.Since),
			Until: revision(q.page.Until)},
		Oldest: revision(q.page.Oldest),
		Items:  make([]v1alpha1.Change, 0, len(q.page.Changes)),
	}
	seen := map[*storage.HistoryState]*state{}
	of := func(s *storage.HistoryState) (*state, error) {
		if s == nil {
			return nil, nil
		}
		if seen[s] == nil {
			known, err := q.state(list, s)
			if err != nil {
				return nil, err
			}
			seen[s] = known
		}
		return seen[s], nil
	}
	for i := range q.page.Changes {
		if q.request.Context().Err() != nil {
			return nil, errEnded
		}
		c := &q.page.Changes[i]
		after, err := of(c.State)
		if err != nil {
			return nil, err
		}
		before, err := of(c.Before)
		if err != nil {
			return nil, err
		}
		change := changeOf(c, before, after)
		if !withObjects {
			change.Object = nil
		}
		answer.Items = append(answer.Items, change)
	}
	return answer, nil
}

func revision(r int64) string {
	if r == 0 {
		return ""
	}
	return strconv.FormatInt(r, 10)
}

// state reads a state. Items of a list do not say what they are where the list says it.
func (q *query) state(list *objects, s *storage.HistoryState) (*state, error) {
	known := &state{}
	data, stored := s.Stored, s.Item < 0
	if !stored {
		if s.Item >= len(list.Items) {
			return nil, apierrors.NewInternalError(fmt.Errorf("the list has no item %d", s.Item))
		}
		data = list.Items[s.Item]
	}
	if s.Err != nil {
		known.err = s.Err.Error()
	}
	if len(data) == 0 {
		return known, nil
	}
	if err := utiljson.Unmarshal(data, &known.object.Object); err != nil {
		if stored { // it is no JSON, and nobody can show it
			return known, nil
		}
		return nil, apierrors.NewInternalError(err)
	}
	if known.stored = stored; stored {
		return known, nil
	}
	if known.object.GetResourceVersion() != revision(s.Revision) { // the registry has a list of its own
		return nil, apierrors.NewInternalError(fmt.Errorf("the list of %s is not that of its storage",
			q.resource()))
	}
	if known.object.GetKind() == "" {
		known.object.SetGroupVersionKind(schema.GroupVersionKind{Group: q.info.APIGroup,
			Version: q.info.APIVersion, Kind: strings.TrimSuffix(list.Kind, "List")})
	}
	return known, nil
}

// changeOf describes a change from one state, nil if there is or was none, to another.
func changeOf(c *storage.Change, before, after *state) v1alpha1.Change {
	change := v1alpha1.Change{Revision: revision(c.Revision), Time: metav1.NewMicroTime(c.Time.UTC()),
		Verb: v1alpha1.Update, Namespace: c.Namespace, Name: c.Name, Earlier: c.Earlier,
		User: c.User, AuditID: c.AuditID, Changed: []string{}}
	switch {
	case c.Created:
		change.Verb = v1alpha1.Create
	case c.Deleted:
		change.Verb = v1alpha1.Delete
	}
	if after == nil { // of a deletion, whose last state is gone
		return change
	}
	change.Object, change.AsStored, change.Error = after.object.Object, after.stored, after.err
	if after.object.Object == nil {
		return change
	}
	change.UID = string(after.object.GetUID())
	switch {
	case c.Deleted:
		return change
	case before != nil && before.object.Object != nil && (before.stored != after.stored ||
		before.object.GetAPIVersion() != after.object.GetAPIVersion()):
		// Fields that have moved from version to version would be told as changed.
	case before != nil && before.object.Object != nil:
		change.Manager = managerOf(before.object.GetManagedFields(), after.object.GetManagedFields())
		change.Changed = Changed(before.object.Object, after.object.Object)
	case c.Created:
		change.Manager = managerOf(nil, after.object.GetManagedFields())
	}
	return change
}

// managerOf returns whose entry the write has written: the newest one that is new, or has another
// time, or has fields that it had not. Entries of others lose fields to it, and keep their time.
func managerOf(before, after []metav1.ManagedFieldsEntry) string {
	var newest *metav1.ManagedFieldsEntry
	for i := range after {
		e := &after[i]
		same := slices.ContainsFunc(before, func(old metav1.ManagedFieldsEntry) bool {
			return old.Manager == e.Manager && old.Operation == e.Operation &&
				old.Subresource == e.Subresource && old.APIVersion == e.APIVersion &&
				old.Time.Equal(e.Time) && !hasMore(fieldsOf(e), fieldsOf(&old))
		})
		if !same && (newest == nil || timeOf(e).After(timeOf(newest))) {
			newest = e
		}
	}
	if newest == nil {
		return ""
	}
	return newest.Manager
}

func fieldsOf(e *metav1.ManagedFieldsEntry) (fields map[string]any) {
	if e.FieldsV1 != nil {
		_ = utiljson.Unmarshal(e.FieldsV1.GetRawBytes(), &fields) // what cannot be read has no fields
	}
	return fields
}

// hasMore tells whether a set of fields has one that another set lacks.
func hasMore(fields, than map[string]any) bool {
	for name, below := range fields {
		other, there := than[name]
		deeper, _ := below.(map[string]any)
		less, _ := other.(map[string]any)
		if !there || hasMore(deeper, less) {
			return true
		}
	}
	return false
}

func timeOf(e *metav1.ManagedFieldsEntry) (t time.Time) {
	if e.Time != nil {
		t = e.Time.Time
	}
	return t
}

// mostChanged is how many paths a change tells, and longestPath how many bytes of each.
const (
	mostChanged = 100
	longestPath = 256
)

// Changed returns the paths of the fields in which two objects differ, in order, without those of
// metadata.managedFields and metadata.resourceVersion. A field that only one of them has is told as
// a whole. If there are more than 100, the last one is "…". A path of more than 256 bytes is cut
// off, and ends with "…".
func Changed(before, after map[string]any) []string {
	d := &differ{paths: []string{}}
	d.maps(before, after)
	return d.paths
}

// differ goes down two objects. It makes a path of where it is only if that is told.
type differ struct {
	paths []string
	at    []step
}

// step is a field, or if it is in a list, an item.
type step struct {
	name string
	item int
	list bool
}

func (d *differ) full() bool { return len(d.paths) > mostChanged }

// add tells a step below where the differ is.
func (d *differ) add(last step) {
	if len(d.paths) == mostChanged {
		d.paths = append(d.paths, "…")
		return
	}
	path := ""
	for _, s := range append(d.at, last) {
		switch {
		case s.list:
			path = fmt.Sprintf("%s[%d]", path, s.item)
		case len(s.name) > longestPath: // the rest would be cut off in any case
			path = Field(path, s.name[:longestPath+1])
		default:
			path = Field(path, s.name)
		}
		if len(path) > longestPath {
			path = strings.ToValidUTF8(path[:longestPath], "") + "…"
			break
		}
	}
	d.paths = append(d.paths, path)
}

func (d *differ) values(at step, before, after any) {
	if d.full() {
		return
	}
	switch b := before.(type) {
	case map[string]any:
		if a, ok := after.(map[string]any); ok {
			d.at = append(d.at, at)
			d.maps(b, a)
			d.at = d.at[:len(d.at)-1]
			return
		}
	case []any:
		if a, ok := after.([]any); ok {
			d.at = append(d.at, at)
			d.lists(b, a)
			d.at = d.at[:len(d.at)-1]
			return
		}
	}
	if !reflect.DeepEqual(before, after) {
		d.add(at)
	}
}

func (d *differ) maps(before, after map[string]any) {
	keys := make([]string, 0, len(before)+len(after))
	for k := range before {
		keys = append(keys, k)
	}
	for k := range after {
		if _, both := before[k]; !both {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	metadata := len(d.at) == 1 && d.at[0].name == "metadata"
	for _, k := range keys {
		b, had := before[k]
		a, has := after[k]
		switch {
		case d.full():
			return
		case metadata && (k == "managedFields" || k == "resourceVersion"):
		case had && has:
			d.values(step{name: k}, b, a)
		default:
			d.add(step{name: k})
		}
	}
}

// lists compares lists item by item. Items at the end of a longer list are told each.
func (d *differ) lists(before, after []any) {
	for i := range max(len(before), len(after)) {
		at := step{item: i, list: true}
		switch {
		case d.full():
			return
		case i < len(before) && i < len(after):
			d.values(at, before[i], after[i])
		default:
			d.add(at)
		}
	}
}

// Field returns the path of a field below another path, which may be "". A name that is no word is
// in brackets, and quoted.
func Field(path, name string) string {
	word := func(r rune) bool {
		return r == '_' || r == '-' || r == '$' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' ||
			'A' <= r && r <= 'Z'
	}
	if name == "" || strings.ContainsFunc(name, func(r rune) bool { return !word(r) }) {
		return path + "[" + strconv.Quote(name) + "]"
	}
	if path == "" {
		return name
	}
	return path + "." + name
}
