package crds

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
)

// fakeStore notes what it is asked for.
type fakeStore struct {
	apistorage.Interface
	exists  bool
	created int
	deleted []types.UID
	failure error // of a deletion
}

func (s *fakeStore) Create(context.Context, string, runtime.Object, runtime.Object, uint64) error {
	s.created++
	return nil
}

func (s *fakeStore) GuaranteedUpdate(_ context.Context, _ string, out runtime.Object, _ bool,
	_ *apistorage.Preconditions, update apistorage.UpdateFunc, _ runtime.Object) error {
	var m apistorage.ResponseMeta
	if s.exists {
		m.ResourceVersion = 7
	}
	updated, _, err := update(out, m)
	if err == nil {
		s.created++
		updated.(*corev1.ConfigMap).DeepCopyInto(out.(*corev1.ConfigMap))
	}
	return err
}

func (s *fakeStore) Delete(ctx context.Context, _ string, _ runtime.Object,
	p *apistorage.Preconditions, _ apistorage.ValidateObjectFunc, _ runtime.Object,
	_ apistorage.DeleteOptions) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.deleted = append(s.deleted, *p.UID)
	return s.failure
}

// namespaceGetter answers for all namespaces.
type namespaceGetter struct {
	namespace *corev1.Namespace
	err       error
	asked     *int
}

func (g namespaceGetter) Get(ctx context.Context, _ string,
	_ *metav1.GetOptions) (runtime.Object, error) {
	*g.asked++
	return g.namespace, errors.Join(g.err, ctx.Err())
}

// An object that was created stays if its namespace is Active after that, and is deleted otherwise,
// for whatever reason it was created, and however impatient the client is.
func TestNamespaceGuard(t *testing.T) {
	active := &corev1.Namespace{}
	terminating := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: time.Now()}}}
	gone := apierrors.NewNotFound(corev1.Resource("configmaps"), "team")
	for name, c := range map[string]struct {
		namespace   *corev1.Namespace
		err         error
		clusterwide bool
		failure     error
		reason      metav1.StatusReason
		says        string
		deleted     bool
	}{
		"active":       {namespace: active},
		"cluster-wide": {clusterwide: true, err: gone},
		"terminating": {namespace: terminating,
			reason: metav1.StatusReasonForbidden, says: "unable to create new content in " +
				"namespace team because it is being terminated", deleted: true},
		"gone": {err: gone, reason: metav1.StatusReasonNotFound,
			says: `namespaces "team" not found`, deleted: true},
		"unknown": {err: errors.New("no database"),
			reason: metav1.StatusReasonTimeout, says: "whether its namespace is still there " +
				"cannot be told: no database"},
		"gone, and so is the object": {err: gone, failure: apistorage.NewKeyNotFoundError("k", 0),
			reason: metav1.StatusReasonNotFound, deleted: true},
		"gone, and another object": {err: gone, failure: apistorage.NewInvalidObjError("k",
			"uid"), reason: metav1.StatusReasonNotFound, deleted: true},
		"gone, and the deletion fails": {err: gone, failure: errors.New("no database"),
			reason: metav1.StatusReasonInternalError, says: "cannot be deleted: no database",
			deleted: true},
	} {
		t.Run(name, func(t *testing.T) {
			object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one",
				Namespace: "team", UID: "uid-of-it"}}
			if c.clusterwide {
				object.Namespace = ""
			}
			asked := 0
			guard := &namespaceGuard{}
			guard.namespaces.Store(&[]rest.Getter{namespaceGetter{c.namespace, c.err, &asked}}[0])
			inner := &fakeStore{failure: c.failure}
			store := guardedStore{inner, guard, nil, corev1.Resource("configmaps"),
				func() runtime.Object {
					return &corev1.ConfigMap{}
				}}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			update := func(runtime.Object, apistorage.ResponseMeta) (runtime.Object,
				*uint64, error) {
				return object, nil, nil
			}
			for how, err := range map[string]error{
				"create": store.Create(ended, "k", object, nil, 0),
				"update": store.GuaranteedUpdate(ended, "k", &corev1.ConfigMap{}, true, nil,
					update, nil),
			} {
				if apierrors.ReasonForError(err) != c.reason ||
					err != nil && !strings.Contains(err.Error(), c.says) {
					t.Errorf("%s: %v", how, err)
				}
			}
			if deleted := len(inner.deleted) == 2; deleted != c.deleted {
				t.Errorf("deleted are %v", inner.deleted)
			}
			for _, uid := range inner.deleted {
				if uid != "uid-of-it" {
					t.Errorf("another object is deleted: %s", uid)
				}
			}

			// What exists is updated in any namespace, which is not looked at.
			asked, inner.exists, inner.deleted = 0, true, nil
			for _, ignoreNotFound := range []bool{false, true} {
				if err := store.GuaranteedUpdate(t.Context(), "k", &corev1.ConfigMap{},
					ignoreNotFound, nil, update, nil); err != nil || asked > 0 ||
					inner.deleted != nil {
					t.Errorf("an update: %v, %d questions, deleted are %v", err, asked,
						inner.deleted)
				}
			}
		})
	}
}

// An object of a definition is created when the definition is Established, and stays if that is not
// being deleted after the creation. What the server knows of the definition is believed only if it
// is what the database has.
func TestDefinitionGuard(t *testing.T) {
	now := &metav1.Time{Time: time.Now()}
	definition := func(version string, uid types.UID, deleted *metav1.Time,
		established apiextensionsv1.ConditionStatus) *apiextensionsv1.CustomResourceDefinition {
		return &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{ResourceVersion: version, UID: uid,
				DeletionTimestamp: deleted},
			Status: apiextensionsv1.CustomResourceDefinitionStatus{
				Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{
					{Type: apiextensionsv1.Established, Status: established}}},
		}
	}
	const yes, no = apiextensionsv1.ConditionTrue, apiextensionsv1.ConditionFalse
	there := definition("7", "uid", nil, yes)
	gone := apierrors.NewNotFound(schema.GroupResource{}, "gadgets.example.com")
	type definitions = []*apiextensionsv1.CustomResourceDefinition
	for name, c := range map[string]struct {
		known    definitions // what is known at one look after the other; nil is none
		revision int64
		failure  error
		stored   *apiextensionsv1.CustomResourceDefinition
		reason   metav1.StatusReason
		created  bool
		deleted  bool
		read     bool // the whole definition is
	}{
		"established":    {known: definitions{there}, revision: 7, created: true},
		"not yet":        {known: definitions{definition("6", "uid", nil, no), there}, revision: 7, created: true},
		"changed":        {known: definitions{there}, revision: 8, stored: definition("8", "uid", nil, yes), created: true, read: true},
		"deleted before": {known: definitions{definition("7", "uid", now, yes)}, reason: metav1.StatusReasonForbidden},
		"gone before":    {known: definitions{nil}, reason: metav1.StatusReasonForbidden},
		"deleted before it is established": {known: definitions{definition("6", "uid", nil, no),
			definition("7", "uid", now, no)}, reason: metav1.StatusReasonForbidden},
		"deleted, unheard of": {known: definitions{there}, revision: 8,
			stored: definition("8", "uid", now, yes), reason: metav1.StatusReasonForbidden,
			created: true, deleted: true, read: true},
		"gone, unheard of": {known: definitions{there}, reason: metav1.StatusReasonForbidden,
			created: true, deleted: true},
		"gone while it is read": {known: definitions{there}, revision: 8,
			reason: metav1.StatusReasonForbidden, created: true, deleted: true, read: true},
		"another one": {known: definitions{there}, revision: 9,
			stored: definition("9", "other", nil, yes), reason: metav1.StatusReasonForbidden,
			created: true, deleted: true, read: true},
		"another one, which is known": {known: definitions{there, definition("9", "other", nil, yes)},
			revision: 9, reason: metav1.StatusReasonForbidden, created: true, deleted: true},
		"unknown": {known: definitions{there}, failure: errors.New("no database"),
			reason: metav1.StatusReasonTimeout, created: true},
		"never": {known: definitions{definition("6", "uid", nil, no)},
			reason: metav1.StatusReasonTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, how := range []string{"create", "update"} {
					looks, read := 0, false
					guard := &definitionGuard{
						known: func(string) (*apiextensionsv1.CustomResourceDefinition, error) {
							d := c.known[min(looks, len(c.known)-1)]
							looks++
							if d == nil {
								return nil, gone
							}
							return d, nil
						},
						revision: func(context.Context, string) (int64, error) {
							return c.revision, c.failure
						},
						read: func(context.Context,
							string) (*apiextensionsv1.CustomResourceDefinition, error) {
							read = true
							if c.stored == nil {
								return nil, gone
							}
							return c.stored, nil
						},
					}
					inner := &fakeStore{}
					store := guardedStore{inner, &namespaceGuard{}, guard,
						schema.GroupResource{Group: "example.com", Resource: "gadgets"},
						func() runtime.Object { return &corev1.ConfigMap{} }}
					object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one",
						UID: "uid-of-it"}}
					var err error
					if how == "create" {
						err = store.Create(t.Context(), "/gadgets/one", object, nil, 0)
					} else {
						err = store.GuaranteedUpdate(t.Context(), "/gadgets/one",
							&corev1.ConfigMap{}, true, nil,
							func(runtime.Object, apistorage.ResponseMeta) (runtime.Object,
								*uint64, error) {
								return object, nil, nil
							}, nil)
					}
					if apierrors.ReasonForError(err) != c.reason {
						t.Errorf("%s: %v", how, err)
					}
					if created := inner.created > 0; created != c.created ||
						len(inner.deleted) > 0 != c.deleted || read != c.read {
						t.Errorf("%s: created %v, deleted %v, read %v", how, created,
							inner.deleted, read)
					}
				}
			})
		})
	}
}

// TestUntold: a client is not told where the database is, and no error stays none.
func TestUntold(t *testing.T) {
	err := untold(t.Context(), errors.New("nothing answers at db.example.com:5432"))
	if !apierrors.IsServiceUnavailable(err) || strings.Contains(err.Error(), "db.example.com") {
		t.Errorf("the client is told %v", err)
	}
	if err := untold(t.Context(), nil); err != nil {
		t.Error(err)
	}
}
