package beside

import (
	"fmt"
	"maps"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// Quotas mean the same on kube-apiserver, with kube-controller-manager, and on our server: what is
// refused, in which words, and what is said to be used after all that changes it.
func TestQuota(t *testing.T) {
	a := startBoth(t, "resourcequota-controller")
	const (
		quota = "{apiVersion: v1, kind: ResourceQuota, metadata: {namespace: team, name: q}, spec: {hard: {" +
			"secrets: 3, count/secrets: 2, count/resourcequotas: 2, resourcequotas: 2, pods: 4, requests.cpu: 1, " +
			"services: 5, services.nodeports: 1, count/deployments.apps: 1, persistentvolumeclaims: 1, " +
			"requests.storage: 1Gi, count/leases.coordination.k8s.io: 0, count/events: 5, nonsense.example.com/a: 1, " +
			"count/things.example.com: 1}}}"
		scoped = "{apiVersion: v1, kind: ResourceQuota, metadata: {namespace: team, name: scoped}, " +
			"spec: {hard: {pods: 1}, scopes: [Terminating]}}"
		more = "{apiVersion: v1, kind: ResourceQuota, metadata: {namespace: team, name: more}, spec: {hard: {pods: 1}}}"
	)
	secret := func(name string) string {
		return "{apiVersion: v1, kind: Secret, metadata: {namespace: team, name: " + name + "}}"
	}
	lease := "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {namespace: team, name: a}}"
	object := func(name string) string {
		return "{apiVersion: example.com/v1, kind: Thing, metadata: {namespace: team, name: " + name + "}}"
	}
	a.must(t, "create", "{apiVersion: v1, kind: Namespace, metadata: {name: team}}")
	a.must(t, "create", quota)
	// What both say is used but for these, after they have counted.
	a.used(t, quota, map[string]string{"secrets": "0", "count/secrets": "0", "pods": "0",
		"requests.cpu": "0", "services": "0", "services.nodeports": "0", "count/deployments.apps": "0",
		"persistentvolumeclaims": "0", "requests.storage": "0", "resourcequotas": "1",
		"count/resourcequotas": "1", "count/leases.coordination.k8s.io": "0"})
	a.must(t, "create", scoped)
	a.used(t, scoped, map[string]string{"pods": "0"})
	a.used(t, quota, map[string]string{"resourcequotas": "2"})
	a.same(t, "a third quota", "create", more)
	a.same(t, "a lease, of none", "create", lease)
	for _, name := range []string{"a", "b", "c"} {
		a.same(t, "a dry run", "try", secret(name))
		a.same(t, "a secret", "create", secret(name))
	}
	a.same(t, "a name that is taken", "create", secret("a"))
	a.used(t, quota, map[string]string{"secrets": "2", "count/secrets": "2"})
	a.same(t, "a change", "merge", "{apiVersion: v1, kind: Secret, metadata: {namespace: team, name: a, labels: {a: b}}}")
	a.must(t, "delete", secret("a"))
	a.used(t, quota, map[string]string{"secrets": "1", "count/secrets": "1"})
	a.same(t, "what is free", "create", secret("c"))
	a.must(t, "clear", secret(""))
	a.used(t, quota, map[string]string{"secrets": "0", "count/secrets": "0"})
	// Upstream's controller learns of a definition within half a minute, and has the quota counted
	// when something of it changes.
	a.must(t, "create", thing)
	eventually(t, "things are served", func() error {
		for _, c := range a.clients {
			if _, err := do(t.Context(), c, "get", object("a")); err != nil &&
				err.Error() != `things.example.com "a" not found` {
				return err
			}
		}
		return nil
	})
	changes := 0
	eventually(t, "things are counted", func() error {
		changes++
		a.must(t, "merge", fmt.Sprintf("{apiVersion: v1, kind: ResourceQuota, metadata: {namespace: team, "+
			"name: q}, spec: {hard: {pods: %d}}}", 10+changes))
		for _, c := range a.clients {
			if is, err := usedOf(t, c, quota); err != nil || is["count/things.example.com"] != "0" {
				return fmt.Errorf("%v are used, %w", is, err)
			}
		}
		return nil
	})
	a.same(t, "a thing", "create", object("a"))
	a.same(t, "another thing", "create", object("b"))
	a.used(t, quota, map[string]string{"count/things.example.com": "1"})
	a.must(t, "delete", object("a"))
	a.used(t, quota, map[string]string{"count/things.example.com": "0"})
	// The limits may be less than what is there, and more again.
	a.same(t, "a secret", "create", secret("a"))
	limit := func(n int) string {
		return fmt.Sprintf("{apiVersion: v1, kind: ResourceQuota, metadata: {namespace: team, name: q}, "+
			"spec: {hard: {secrets: %d}}}", n)
	}
	a.must(t, "merge", limit(0))
	eventually(t, "the limit is in force", func() error { return a.limits(t, quota, "secrets", "0") })
	a.same(t, "a secret, of none", "create", secret("b"))
	a.must(t, "merge", limit(2))
	eventually(t, "the limit is in force", func() error { return a.limits(t, quota, "secrets", "2") })
	a.same(t, "the second secret", "create", secret("b"))
	a.must(t, "delete", quota)
	eventually(t, "nothing is limited", func() error {
		for _, c := range a.clients {
			if _, err := do(t.Context(), c, "try", secret("c")); err != nil {
				return err
			}
		}
		return nil
	})
	t.Logf("%d answers were compared", a.compared)
}

// statusOf is what a quota's status has of a name.
func statusOf(t *testing.T, c dynamic.Interface, quota, of string) (map[string]string, error) {
	text, err := do(t.Context(), c, "get", quota)
	if err != nil {
		return nil, err
	}
	object := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &object); err != nil {
		return nil, err
	}
	is, _, err := unstructured.NestedStringMap(object, "status", of)
	return is, err
}

func usedOf(t *testing.T, c dynamic.Interface, quota string) (map[string]string, error) {
	return statusOf(t, c, quota, "used")
}

// used waits until both servers say that these are used, and compares all that they say. There is
// one difference: ours counts keys, and so says that none are used of a kind that has no definition
// yet. Upstream's controller leaves such a kind out.
func (b *both) used(t *testing.T, quota string, want map[string]string) {
	t.Helper()
	b.compared++
	var is [2]map[string]string
	for i, c := range b.clients {
		eventually(t, fmt.Sprintf("server %d says that %v are used", i, want), func() (err error) {
			if is[i], err = usedOf(t, c, quota); err != nil {
				return err
			}
			for name, n := range want {
				if is[i][name] != n {
					return fmt.Errorf("it says %v", is[i])
				}
			}
			return nil
		})
	}
	if _, ok := is[1]["count/things.example.com"]; !ok {
		delete(is[0], "count/things.example.com")
	}
	if !maps.Equal(is[0], is[1]) {
		t.Errorf("our server says that %v are used, and upstream's %v", is[0], is[1])
	}
}

// limits returns why one of the servers does not say that a number is the limit.
func (b *both) limits(t *testing.T, quota, name, n string) error {
	for _, c := range b.clients {
		if is, err := statusOf(t, c, quota, "hard"); err != nil || is[name] != n {
			return fmt.Errorf("the limits are %v, %w", is, err)
		}
	}
	return nil
}
