package builtin

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

const hereConfigMaps = "count/configmaps"

// quotaTest has a quota of three ConfigMaps in the namespace default, and runs one server's
// [Quotas].
type quotaTest struct {
	*Quotas
	client    *fake.Clientset
	there     atomic.Int64 // ConfigMaps
	counts    atomic.Int64 // how often they were counted
	written   atomic.Int64
	conflicts atomic.Int64 // of the next writes
	away      atomic.Bool  // the database, so that nothing can be counted
}

func newQuotaTest(t *testing.T, test func(t *testing.T, q *quotaTest)) {
	synctest.Test(t, func(t *testing.T) {
		q := &quotaTest{client: fake.NewClientset(quotaOf("3", "", "7"))}
		q.client.PrependReactor("update", "resourcequotas",
			func(a clienttesting.Action) (bool, runtime.Object, error) {
				is := a.(clienttesting.UpdateAction).GetObject().(*corev1.ResourceQuota)
				if a.GetSubresource() != "status" || is.ResourceVersion == "" {
					return true, nil, errors.New("the status must be written to what was read")
				}
				q.written.Add(1)
				if q.conflicts.Load() > 0 {
					q.conflicts.Add(-1)
					return true, nil, apierrors.NewConflict(corev1.Resource("resourcequotas"),
						is.Name, nil)
				}
				return false, nil, nil
			})
		factory := informers.NewSharedInformerFactory(q.client, 0)
		ctx, cancel := context.WithCancel(t.Context())
		var err error
		if q.Quotas, err = NewQuotas(q.client.CoreV1(), factory.Core().V1().ResourceQuotas(),
			ctx.Done()); err != nil {
			t.Fatal(err)
		}
		q.Start(func(_ context.Context, r schema.GroupResource, namespace string) (int64, error) {
			q.counts.Add(1)
			if r != corev1.Resource("configmaps") || namespace != "default" {
				return 0, nil
			}
			if q.away.Load() {
				return 0, errors.New("no database")
			}
			return q.there.Load(), nil
		})
		factory.StartWithContext(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			q.Run(ctx)
		}()
		q.after(t, time.Second, "0")
		test(t, q)
		cancel()
		<-ended
		factory.Shutdown()
	})
}

func quotaOf(hard, used, version string) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one", ResourceVersion: version},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			hereConfigMaps: resource.MustParse(hard)}}}
	if used != "" {
		q.Status = corev1.ResourceQuotaStatus{Hard: q.Spec.Hard, Used: corev1.ResourceList{
			hereConfigMaps: resource.MustParse(used)}}
	}
	return q
}

// after lets time pass, and looks at what the quota says then.
func (q *quotaTest) after(t *testing.T, d time.Duration, want string) {
	t.Helper()
	<-time.After(d)
	synctest.Wait()
	is, err := q.client.CoreV1().ResourceQuotas("default").Get(t.Context(), "one",
		metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n := is.Status.Used[hereConfigMaps]; n.String() != want || len(is.Status.Used) != 1 {
		t.Errorf("the quota says %v, want %s", is.Status.Used, want)
	}
}

// admit writes what a server has admitted.
func (q *quotaTest) admit(t *testing.T, used, version string) {
	t.Helper()
	if err := q.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("resourcequotas"),
		quotaOf("3", used, version), "default"); err != nil {
		t.Fatal(err)
	}
}

// A deletion is counted within a moment, also if another server writes first.
func TestQuotaAfterDeletion(t *testing.T) {
	newQuotaTest(t, func(t *testing.T, q *quotaTest) {
		q.there.Store(2)
		q.admit(t, "3", "8")
		q.after(t, quotaSettles+time.Millisecond, "2")
		<-time.After(quotaResync / 2)
		q.there.Store(1)
		q.conflicts.Store(2)
		q.Deleted(corev1.Resource("secrets"), "default")
		q.after(t, time.Minute, "2")
		q.Deleted(corev1.Resource("configmaps"), "other")
		q.after(t, time.Minute/2, "2")
		q.Deleted(corev1.Resource("configmaps"), "default")
		q.after(t, 3*quotaSettles+time.Millisecond, "1")
		q.away.Store(true)
		q.there.Store(0)
		q.Deleted(corev1.Resource("configmaps"), "default")
		q.after(t, quotaSettles+time.Millisecond, "1")
		q.away.Store(false)
		q.after(t, time.Second, "0")
	})
}

// While servers admit, the quota is not corrected, but not for ever: their objects may not be
// committed yet.
func TestQuotaWhileAdmitting(t *testing.T) {
	newQuotaTest(t, func(t *testing.T, q *quotaTest) {
		// It was counted a moment ago, long after the last change.
		<-time.After(time.Minute)
		q.Deleted(corev1.Resource("configmaps"), "default")
		<-time.After(2 * quotaSettles)
		written := q.written.Load()
		for i := range 12 { // for 960 ms
			q.admit(t, "3", "1"+string(rune('a'+i)))
			q.after(t, quotaSettles-20*time.Millisecond, "3")
		}
		if n := q.written.Load(); n > written {
			t.Errorf("%d writes while others write", n-written)
		}
		for range 2 {
			q.admit(t, "3", "20")
			<-time.After(quotaSettles - 20*time.Millisecond)
		}
		q.after(t, 0, "0")
	})
}

// What nobody tells of is noticed: soon after the last change, and else at some time.
func TestQuotaAfterSilentChange(t *testing.T) {
	newQuotaTest(t, func(t *testing.T, q *quotaTest) {
		for i, wait := range []time.Duration{2 * quotaSettles, 10 * quotaSettles, 110 * quotaSettles} {
			q.there.Store(int64(i + 1))
			q.after(t, wait, string(rune('1'+i)))
		}
		<-time.After(quotaResync / 2)
		counts := q.counts.Load()
		q.there.Store(0)
		q.after(t, time.Minute, "3")
		if n := q.counts.Load(); n > counts {
			t.Errorf("it was counted %d times without a reason", n-counts)
		}
		q.after(t, quotaResync, "0")
	})
}

// Limits that are changed are in force at once: the status does not have to settle before.
func TestQuotaIsChanged(t *testing.T) {
	newQuotaTest(t, func(t *testing.T, q *quotaTest) {
		changed := quotaOf("3", "0", "8")
		changed.Spec.Hard = corev1.ResourceList{hereConfigMaps: resource.MustParse("4")}
		if err := q.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("resourcequotas"),
			changed, "default"); err != nil {
			t.Fatal(err)
		}
		q.after(t, time.Millisecond, "0")
		is, err := q.client.CoreV1().ResourceQuotas("default").Get(t.Context(), "one",
			metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if n := is.Status.Hard[hereConfigMaps]; n.String() != "4" {
			t.Errorf("the limit in force is %s", n.String())
		}
	})
}

// An object that was committed stays if there are not too many, by what is stored: neither the
// status nor what this server has heard of the quota decides.
func TestQuotaCheck(t *testing.T) {
	newQuotaTest(t, func(t *testing.T, q *quotaTest) {
		check := func(resource string) error {
			return q.Check(t.Context(), corev1.Resource(resource), "default", "a")
		}
		q.there.Store(3)
		if err := check("configmaps"); err != nil {
			t.Errorf("the third: %v", err)
		}
		q.there.Store(4)
		const words = `configmaps "a" is forbidden: exceeded quota: one, requested: ` +
			`count/configmaps=1, used: count/configmaps=3, limited: count/configmaps=3`
		if err := check("configmaps"); !apierrors.IsForbidden(err) || err.Error() != words {
			t.Errorf("the fourth: %v", err)
		}
		if err := check("secrets"); err != nil {
			t.Errorf("another kind: %v", err)
		}
		if err := q.Check(t.Context(), corev1.Resource("configmaps"), "other", "a"); err != nil {
			t.Errorf("another namespace: %v", err)
		}
		gadgets := schema.GroupResource{Group: "example.com", Resource: "gadgets"}
		if err := q.Check(t.Context(), gadgets, "default", "a"); err != nil {
			t.Errorf("a definition's object: %v", err)
		}
		q.away.Store(true)
		if err := check("configmaps"); err == nil || !strings.Contains(err.Error(), "no database") {
			t.Errorf("without the database: %v", err)
		}
		q.away.Store(false)
		q.client.PrependReactor("list", "resourcequotas",
			func(a clienttesting.Action) (bool, runtime.Object, error) {
				o := a.(clienttesting.ListActionImpl).ListOptions
				if o.ResourceVersion != "" {
					t.Errorf("the quotas may be as old as %s", o.ResourceVersion)
				}
				return true, &corev1.ResourceQuotaList{Items: []corev1.ResourceQuota{
					*quotaOf("4", "0", "9")}}, nil
			})
		if err := check("configmaps"); err != nil {
			t.Errorf("the fourth, of four that the informer does not know: %v", err)
		}
	})
}

// What a server admits is in the quota's status before it is committed. What is only tried, and
// what is refused, is not. Conflicts with other servers are no reason to refuse.
func TestQuotaAdmission(t *testing.T) {
	newQuotaTest(t, func(t *testing.T, q *quotaTest) {
		q.there.Store(1)
		q.after(t, quotaResync, "1")
		admit := func(resource, namespace string, dryRun bool) error {
			configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
				Name: "a"}}
			return q.Admission().Validate(t.Context(), admission.NewAttributesRecord(configMap, nil,
				corev1.SchemeGroupVersion.WithKind("ConfigMap"), namespace, "a",
				corev1.SchemeGroupVersion.WithResource(resource), "", admission.Create,
				&metav1.CreateOptions{}, dryRun, nil), nil)
		}
		try := func(resource, namespace string, dryRun bool, want string) {
			t.Helper()
			if err := admit(resource, namespace, dryRun); err != nil {
				t.Error(err)
			}
			q.after(t, 0, want)
		}
		try("configmaps", "default", true, "1")
		try("secrets", "default", false, "1")
		try("configmaps", "other", false, "1")
		try("configmaps", "default", false, "2")
		q.conflicts.Store(9)
		try("configmaps", "default", false, "3")
		for _, dryRun := range []bool{true, false} {
			if err := admit("configmaps", "default", dryRun); !apierrors.IsForbidden(err) {
				t.Errorf("the fourth: %v", err)
			}
		}
		q.after(t, 0, "3")
	})
}
