// Package node stands in for a kubelet on a machine without container runtime: it registers a node,
// and runs the pods that the scheduler binds to it as processes of this machine.
//
// A process has the arguments, the environment, the user and the mounted files that its pod asks
// for. Its root directory has what is in its image and the mounted volumes, and nothing else of
// this machine; a root file system that may only be read has no directory in which it could write.
// Probes are made, containers that end or are not alive are started again, and Secrets and
// ConfigMaps that change are written anew while the process runs, all as a kubelet does.
//
// A process has no sandbox: there are no namespaces, no cgroups and no seccomp filter. Instead of a
// network of its own a pod has an address of its own among 127.0.0.0/8, which stands in those of
// its arguments that name a port to listen at, or else in the flag --bind-address after them.
//
// A pod that needs something that is not here (several containers, other kinds of volumes and
// probes) is an error, which [Node.Errors] tells.
//
// The library virtual-kubelet (node, version 1.13) would take over about 360 of these 1,400 lines:
// the node object and its heartbeat, the informer of pods, and variables from ConfigMaps and
// Secrets. It has no volumes, probes, restarts or processes, which are the rest, and it asks the
// author of a provider for them. It depends on controller-runtime and on older Kubernetes modules.
// So it is not used.
package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/executable"
)

// Name is the name of the node.
const Name = "loopback"

// Config says what a node runs and where.
type Config struct {
	// Client may do what a kubelet may.
	Client kubernetes.Interface
	// Env is what every container finds in its environment besides what its pod says: the address
	// of the API server.
	Env []string
	// Dir is where the pods' directories are made, Logs where their logs are written.
	Dir, Logs string
}

// Node is a running node.
type Node struct {
	Config
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	images  map[string]*Image
	pods    map[types.UID]*pod
	lastIP  byte
	problem []error
}

// Start registers the node and begins to run pods. Its processes end with Close.
func Start(ctx context.Context, config Config) (*Node, error) {
	for _, dir := range []string{config.Dir, config.Logs} {
		// The users of the containers must get through to their own directories.
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	n := &Node{Config: config, cancel: cancel, images: map[string]*Image{},
		pods: map[types.UID]*pod{}, lastIP: 1}
	if err := n.register(ctx); err != nil {
		cancel()
		return nil, fmt.Errorf("register the node: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(config.Client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", Name).String()
		}))
	_, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { n.observe(ctx, obj.(*corev1.Pod)) },
		UpdateFunc: func(_, obj any) { n.observe(ctx, obj.(*corev1.Pod)) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			n.forget(obj.(*corev1.Pod))
		},
	})
	if err != nil {
		cancel()
		return nil, err
	}
	factory.Start(ctx.Done())
	return n, nil
}

// Close kills all processes.
func (n *Node) Close() {
	n.cancel()
	n.wg.Wait()
}

// Errors are the pods that could not be run, and why.
func (n *Node) Errors() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return errors.Join(n.problem...)
}

// Process returns the process of a pod's container, nil if none runs.
func (n *Node) Process(uid types.UID) *executable.Process {
	n.mu.Lock()
	p := n.pods[uid]
	n.mu.Unlock()
	if p == nil {
		return nil
	}
	return p.process()
}

// Started is when a pod's container was started for the first time.
func (n *Node) Started(uid types.UID) time.Time {
	n.mu.Lock()
	p := n.pods[uid]
	n.mu.Unlock()
	if p == nil {
		return time.Time{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.began
}

func (n *Node) register(ctx context.Context) error {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("16"),
		corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	node, err := n.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: Name,
			Labels: map[string]string{corev1.LabelHostname: Name,
				corev1.LabelTopologyZone: "zone-1", corev1.LabelOSStable: "linux"}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	node.Status.Capacity, node.Status.Allocatable = capacity, capacity
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady,
		Status: corev1.ConditionTrue, Reason: "KubeletReady", LastTransitionTime: metav1.Now(),
		LastHeartbeatTime: metav1.Now()}}
	if node, err = n.Client.CoreV1().Nodes().UpdateStatus(ctx, node,
		metav1.UpdateOptions{}); err != nil {
		return err
	}
	// Every new node gets the taint "not ready", which the controller for the life of nodes would
	// take away.
	node.Spec.Taints = nil
	if _, err = n.Client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
		return err
	}
	// A volume for the one who claims it first, as an administrator makes it where no storage class
	// does.
	_, err = n.Client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: Name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("100Gi")},
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(n.Dir, "claims")}},
		},
	}, metav1.CreateOptions{})
	return err
}

// EmptyVolume gives the volume, whose claim is gone, to the one who claims it next, with nothing in
// it. An administrator does that with a volume that is kept.
func (n *Node) EmptyVolume(ctx context.Context) error {
	if err := os.RemoveAll(filepath.Join(n.Dir, "claims")); err != nil {
		return err
	}
	_, err := n.Client.CoreV1().PersistentVolumes().Patch(ctx, Name, types.JSONPatchType,
		[]byte(`[{"op": "remove", "path": "/spec/claimRef"}]`), metav1.PatchOptions{})
	return err
}

// observe starts a pod, or tells a running one that it has changed.
func (n *Node) observe(ctx context.Context, object *corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.pods[object.UID]; p != nil {
		p.update(object)
		return
	}
	n.lastIP++
	p := newPod(n, object, fmt.Sprintf("127.0.0.%d", n.lastIP))
	n.pods[object.UID] = p
	ctx, p.cancel = context.WithCancel(ctx)
	n.wg.Go(func() {
		defer p.cancel()
		if err := p.run(ctx); err != nil && ctx.Err() == nil {
			n.mu.Lock()
			n.problem = append(n.problem, fmt.Errorf("pod %s/%s: %w", object.Namespace,
				object.Name, err))
			n.mu.Unlock()
		}
	})
}

// forget ends a pod that was removed without being asked to end first.
func (n *Node) forget(object *corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.pods[object.UID]; p != nil {
		p.cancel()
		delete(n.pods, object.UID)
	}
}

// claim is the directory of a PersistentVolumeClaim, which outlives its pods.
func (n *Node) claim(namespace, name string) string {
	return filepath.Join(n.Dir, "claims", namespace, name)
}

// AddImage lets containers name an image. Others are those of this machine's Docker engine, as on
// the node of a cluster that shares the engine with its developer.
func (n *Node) AddImage(name string, image *Image) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.images[name] = image
}

func (n *Node) image(name string) (*Image, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if image, ok := n.images[name]; ok {
		return image, nil
	}
	into := filepath.Join(n.Dir, "images", strconv.Itoa(len(n.images)))
	if err := os.MkdirAll(into, 0o755); err != nil {
		return nil, err
	}
	out, err := exec.Command("docker", "save", "-o", into+".tar", name).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("there is no image %q here, only %s, and none of an engine: %w: %s",
			name, strings.Join(slices.Sorted(maps.Keys(n.images)), ", "), err, out)
	}
	image, err := LoadImage(into+".tar", into)
	if err == nil {
		n.images[name] = image
	}
	return image, err
}
