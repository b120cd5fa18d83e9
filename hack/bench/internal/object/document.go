package object

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"sort"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
)

// Large objects of a cluster consist of the same things again and again: containers with their
// environment, the fields that each manager owns, and what kubectl applied last. So do these. The
// pods of the example API have no containers, so these are in what was applied last.

// documents is how many different ones there are. Objects share them, but for names and UIDs, as
// the pods of a deployment do.
const documents = 64

// document makes an object of the used size.
func document(name string) *example.Pod {
	sum := sha256.Sum256([]byte(name))
	pod := made()[int(sum[0])%documents]
	pod.Name, pod.UID = name, types.UID(hex.EncodeToString(sum[:16]))
	pod.Annotations = maps.Clone(pod.Annotations) // the only thing that is changed later
	return &pod
}

var made = sync.OnceValue(func() (all [documents]example.Pod) {
	for i := range all {
		// The most containers with which it is no larger than was asked for, but one at least.
		more := sort.Search(used.Bytes/512, func(n int) bool {
			pod := withContainers(i, n+2)
			data, err := runtime.Encode(asJSON, &pod)
			utilruntime.Must(err)
			return len(data) > used.Bytes
		})
		all[i] = withContainers(i, 1+more)
	}
	return all
})

type environment struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type container struct {
	Name    string        `json:"name"`
	Image   string        `json:"image"`
	Args    []string      `json:"args"`
	Env     []environment `json:"env"`
	Volumes []environment `json:"volumeMounts"`
}

// withContainers is the i-th document, with n containers of about a kilobyte each.
func withContainers(i, n int) example.Pod {
	digest := func(what string, k int) string {
		sum := sha256.Sum256(fmt.Append(nil, what, i, k))
		return hex.EncodeToString(sum[:])
	}
	var containers []container
	owned := map[string]any{}
	var conditions []example.PodCondition
	when := metav1.Date(2026, time.January, 1+i%28, 12, i%60, 0, 0, time.UTC)
	for k := range n {
		c := container{
			Name:  fmt.Sprintf("worker-%d", k),
			Image: "registry.example.com/team/worker@sha256:" + digest("image", k),
			Args:  []string{"--config=/etc/worker/config.yaml", "--shard=" + digest("shard", k)[:12]},
			Env: []environment{
				{"DATABASE_URL", "postgres://worker:secret@db.team.svc.cluster.local:5432/" + digest("db", k)[:8]},
				{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.monitoring.svc.cluster.local:4317"},
				{"REQUEST_ID_SEED", digest("seed", k)[:24]},
			},
			Volumes: []environment{{"config", "/etc/worker"}, {"token", "/var/run/secrets/tokens"}},
		}
		containers = append(containers, c)
		owned[fmt.Sprintf(`k:{"name":%q}`, c.Name)] = map[string]any{".": map[string]any{},
			"f:name": map[string]any{}, "f:image": map[string]any{}, "f:args": map[string]any{},
			"f:env": map[string]any{".": map[string]any{},
				`k:{"name":"DATABASE_URL"}`:                map[string]any{".": map[string]any{}, "f:value": map[string]any{}},
				`k:{"name":"OTEL_EXPORTER_OTLP_ENDPOINT"}`: map[string]any{".": map[string]any{}, "f:value": map[string]any{}},
			}}
		if k < 5 {
			conditions = append(conditions, example.PodCondition{
				Type: example.PodConditionType(fmt.Sprintf("Condition%d", k)), Status: "True",
				LastTransitionTime: when, Reason: "ContainersReady",
				Message: "all containers are ready"})
		}
	}
	applied, err := json.Marshal(map[string]any{"spec": map[string]any{"containers": containers}})
	utilruntime.Must(err)
	fields, err := json.Marshal(map[string]any{"f:spec": map[string]any{"f:containers": owned}})
	utilruntime.Must(err)
	return example.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Labels: map[string]string{"app.kubernetes.io/name": "worker",
				"app.kubernetes.io/instance": fmt.Sprint("worker-", i), "pod-template-hash": digest("template", 0)[:10]},
			Annotations: map[string]string{count: number(0),
				"kubectl.kubernetes.io/last-applied-configuration": string(applied)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet",
				Name: fmt.Sprint("worker-", i), UID: types.UID(digest("owner", 0)[:32])}},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: "kubectl-client-side-apply", Operation: "Update", APIVersion: "v1",
					Time: &when, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(string(fields))},
			},
		},
		Spec:   example.PodSpec{NodeName: fmt.Sprint("node-", i%100), ServiceAccountName: "worker"},
		Status: example.PodStatus{Phase: "Running", Conditions: conditions, StartTime: &when},
	}
}
