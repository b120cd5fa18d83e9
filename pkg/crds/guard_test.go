package crds

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/rowkeeper/rowkeeper/pkg/crds/internal/builtin"
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

func (s *fakeStore) Delete(ctx context.Context, _ string, out runtime.Object,
	p *apistorage.Preconditions, _ apistorage.ValidateObjectFunc, _ runtime.Object,
	_ apistorage.DeleteOptions) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.deleted = append(s.deleted, *p.UID)
	out.(*corev1.ConfigMap).Namespace = "team"
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

			// An object that exists is updated in any namespace, which is not looked at.
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

// An object that was created stays if no quota is exceeded after that, and is deleted otherwise. A
// deletion is counted soon, though no object was created for long.
func TestQuotaGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		client := fake.NewClientset(&corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "few", ResourceVersion: "7"},
			Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
				"configmaps": resource.MustParse("3")}}})
		factory := informers.NewSharedInformerFactory(client, 0)
		quotas, err := builtin.NewQuotas(client.CoreV1(), factory.Core().V1().ResourceQuotas(),
			ctx.Done())
		if err != nil {
			t.Fatal(err)
		}
		var there atomic.Int64
		var away atomic.Bool // the database
		there.Store(3)
		quotas.Start(func(_ context.Context, r schema.GroupResource, ns string) (int64, error) {
			if r != corev1.Resource("configmaps") || ns != "team" {
				return 0, nil
			}
			if away.Load() {
				return 0, errors.New("no database")
			}
			return there.Load(), nil
		})
		factory.StartWithContext(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			quotas.Run(ctx)
		}()
		defer func() {
			cancel()
			<-ended
			factory.Shutdown()
		}()
		used := func(want int64) {
			t.Helper()
			q, err := client.CoreV1().ResourceQuotas("team").Get(ctx, "few", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if n := q.Status.Used["configmaps"]; n.Value() != want {
				t.Errorf("%s are used, want %d", n.String(), want)
			}
		}
		<-time.After(time.Minute)
		used(3)
		inner := &fakeStore{}
		store := guardedStore{inner, &namespaceGuard{quotas: quotas}, nil,
			corev1.Resource("configmaps"), func() runtime.Object { return &corev1.ConfigMap{} }}
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "team",
			UID: "uid-of-it"}}
		create := func() error { return store.Create(ctx, "k", object, nil, 0) }
		if err := create(); err != nil || inner.deleted != nil {
			t.Errorf("the third: %v, deleted are %v", err, inner.deleted)
		}
		there.Store(4)
		if err := create(); !apierrors.IsForbidden(err) || len(inner.deleted) != 1 {
			t.Errorf("the fourth: %v, deleted are %v", err, inner.deleted)
		}
		away.Store(true)
		if err := create(); !apierrors.IsTimeout(err) || len(inner.deleted) != 1 ||
			!strings.Contains(err.Error(), "whether its quota is exceeded cannot be told: no database") {
			t.Errorf("without the database: %v, deleted are %v", err, inner.deleted)
		}
		there.Store(2)
		away.Store(false)
		if err := store.Delete(ctx, "k", &corev1.ConfigMap{}, &apistorage.Preconditions{
			UID: &object.UID}, nil, nil, apistorage.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		used(2)
	})
}

// An object of a definition is created when the definition is Established, and stays if that is not
// being deleted after the creation. The definition that the server knows is believed only if the
// database has the same.
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

// Upstream deletes the objects of a definition without a request. None is deleted, or marked, whose
// definition was brought back by a restore meanwhile. Whoever asks by a request may do both.
func TestDefinitionBroughtBack(t *testing.T) {
	now := &metav1.Time{Time: time.Now()}
	definition := func(version string,
		deleted *metav1.Time) *apiextensionsv1.CustomResourceDefinition {
		return &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: version, DeletionTimestamp: deleted}}
	}
	deleted := definition("7", now)
	asked := request.WithRequestInfo(t.Context(), &request.RequestInfo{Verb: "delete"})
	for name, c := range map[string]struct {
		ctx      context.Context
		revision int64
		failure  error
		stored   *apiextensionsv1.CustomResourceDefinition
		refused  bool
	}{
		"being deleted":                    {ctx: t.Context(), revision: 7},
		"being deleted, in a newer state":  {ctx: t.Context(), revision: 8, stored: definition("8", now)},
		"gone":                             {ctx: t.Context()},
		"brought back":                     {ctx: t.Context(), revision: 3, stored: definition("3", nil), refused: true},
		"unknown":                          {ctx: t.Context(), failure: errors.New("no database"), refused: true},
		"brought back, and somebody asks":  {ctx: asked, revision: 3, stored: definition("3", nil)},
		"another one, and somebody asks":   {ctx: asked, revision: 9, stored: definition("9", nil)},
		"no database, and somebody asks":   {ctx: asked, failure: errors.New("no database")},
		"being deleted, and somebody asks": {ctx: asked, revision: 7},
	} {
		t.Run(name, func(t *testing.T) {
			guard := &definitionGuard{
				known: func(string) (*apiextensionsv1.CustomResourceDefinition, error) {
					return deleted, nil
				},
				revision: func(context.Context, string) (int64, error) {
					return c.revision, c.failure
				},
				read: func(context.Context,
					string) (*apiextensionsv1.CustomResourceDefinition, error) {
					return c.stored, nil
				},
			}
			inner := &fakeStore{exists: true}
			store := guardedStore{inner, &namespaceGuard{}, guard,
				schema.GroupResource{Group: "example.com", Resource: "gadgets"},
				func() runtime.Object { return &corev1.ConfigMap{} }}
			uid := types.UID("uid-of-it")
			for how, err := range map[string]error{
				"delete": store.Delete(c.ctx, "/gadgets/one", &corev1.ConfigMap{},
					&apistorage.Preconditions{UID: &uid}, nil, nil, apistorage.DeleteOptions{}),
				"mark": store.GuaranteedUpdate(c.ctx, "/gadgets/one", &corev1.ConfigMap{}, false,
					nil, func(o runtime.Object, _ apistorage.ResponseMeta) (runtime.Object,
						*uint64, error) {
						return o, nil, nil
					}, nil),
			} {
				if (err != nil) != c.refused {
					t.Errorf("%s: %v", how, err)
				}
			}
			if done := len(inner.deleted) > 0 && inner.created > 0; done == c.refused {
				t.Errorf("deleted %v, updated %d times", inner.deleted, inner.created)
			}
		})
	}
}
