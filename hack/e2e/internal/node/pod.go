package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/executable"
)

const (
	// restartDelay is how long a container that has ended rests before it is started again. A
	// kubelet's grows from ten seconds; a test has no time for that.
	restartDelay = time.Second
	// refreshPeriod is how often mounted Secrets and ConfigMaps are read again. A kubelet takes
	// about a minute.
	refreshPeriod = time.Second
	// defaultGrace is how long a container has to end, if its pod does not say.
	defaultGrace = 30
)

// pod is a pod that runs here, with one container.
type pod struct {
	node *Node
	ip   string
	// object is the pod as it was when it came here.
	object *corev1.Pod
	image  *Image
	// root is the container's root directory.
	root string
	// cancel ends everything at once.
	cancel context.CancelFunc

	mu       sync.Mutex
	grace    int64         // how many seconds the container has to end
	deleted  chan struct{} // closed when the pod is to end
	current  *executable.Process
	began    time.Time // when the container was started for the first time
	status   containerStatus
	unsynced chan struct{} // has a value when the status is to be written
}

type containerStatus struct {
	running, started, ready bool
	restarts                int32
	since                   metav1.Time
}

func newPod(n *Node, object *corev1.Pod, ip string) *pod {
	p := &pod{
		node: n, ip: ip, object: object, grace: defaultGrace,
		root:     filepath.Join(n.Dir, string(object.UID), "root"),
		deleted:  make(chan struct{}),
		unsynced: make(chan struct{}, 1),
	}
	if s := object.Spec.TerminationGracePeriodSeconds; s != nil {
		p.grace = *s
	}
	p.update(object)
	return p
}

// update looks whether the pod is to end, as the newest version of its object says.
func (p *pod) update(object *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if object.DeletionTimestamp == nil {
		return
	}
	if s := object.DeletionGracePeriodSeconds; s != nil {
		p.grace = *s
	}
	select {
	case <-p.deleted:
	default:
		close(p.deleted)
	}
}

func (p *pod) process() *executable.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

func (p *pod) change(f func(*containerStatus)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.status)
	select {
	case p.unsynced <- struct{}{}:
	default:
	}
}

// run runs the pod until it was deleted or ctx ends.
func (p *pod) run(ctx context.Context) error {
	if p.object.DeletionTimestamp != nil {
		return p.remove(ctx)
	}
	if err := p.supported(); err != nil {
		return err
	}
	var background sync.WaitGroup
	defer background.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	volumes, err := p.mount(ctx)
	if err != nil {
		return fmt.Errorf("mount the volumes: %w", err)
	}
	defer volumes.unmount()
	background.Go(func() { volumes.refresh(ctx) })
	background.Go(func() { p.writeStatus(ctx) })

	for first := true; ; first = false {
		if !first {
			p.change(func(s *containerStatus) {
				s.running, s.started, s.ready, s.restarts = false, false, false, s.restarts+1
			})
			select {
			case <-time.After(restartDelay):
			case <-p.deleted:
				return p.remove(ctx)
			case <-ctx.Done():
				return nil
			}
		}
		over, err := p.runContainer(ctx)
		if err != nil {
			return err
		}
		if over {
			break
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return p.remove(ctx)
}

// runContainer runs the container once. It tells whether the pod is over, too.
func (p *pod) runContainer(ctx context.Context) (over bool, err error) {
	spec, err := p.spec(ctx)
	if err != nil {
		return false, err
	}
	began := time.Now()
	running, err := executable.Start(*spec)
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	p.current = running
	if p.began.IsZero() {
		p.began = began
	}
	p.mu.Unlock()
	p.change(func(s *containerStatus) { s.running, s.since = true, metav1.Now() })
	probes, stopProbes := context.WithCancel(ctx)
	var probing sync.WaitGroup
	dead := make(chan struct{})
	probing.Go(func() { p.probe(probes, dead) })
	defer probing.Wait()
	defer stopProbes()

	select {
	case <-running.Exited():
		return false, nil
	case <-ctx.Done():
		return true, running.Kill()
	case <-dead:
		return false, p.terminate(running)
	case <-p.deleted:
		// Probes go on while the container drains, so that its readiness is seen to end.
		return true, p.terminate(running)
	}
}

// terminate ends the container as the pod's grace period says.
func (p *pod) terminate(running *executable.Process) error {
	p.mu.Lock()
	grace := p.grace
	p.mu.Unlock()
	if err := running.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-running.Exited():
		return nil
	case <-time.After(time.Duration(grace) * time.Second):
		return running.Kill()
	}
}

// remove confirms to the API server that the pod has ended.
func (p *pod) remove(ctx context.Context) error {
	err := p.node.Client.CoreV1().Pods(p.object.Namespace).Delete(ctx, p.object.Name,
		metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0),
			Preconditions:      metav1.NewUIDPreconditions(string(p.object.UID)),
		})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// supported tells what the pod needs that is not here.
func (p *pod) supported() error {
	spec := p.object.Spec
	if len(spec.Containers) != 1 || len(spec.InitContainers) > 0 {
		return errors.New("only pods with one container can run here")
	}
	c := spec.Containers[0]
	if c.Lifecycle != nil {
		return errors.New("lifecycle hooks are not supported here")
	}
	var err error
	if p.image, err = p.node.image(c.Image); err != nil {
		return err
	}
	if s := c.SecurityContext; p.runAsUser() == 0 || s == nil || s.ReadOnlyRootFilesystem == nil ||
		!*s.ReadOnlyRootFilesystem {
		return errors.New("only pods that do not run as root and do not write to their root file " +
			"system can run here")
	}
	return nil
}

// spec makes the process from the container.
func (p *pod) spec(ctx context.Context) (*executable.Spec, error) {
	c := p.object.Spec.Containers[0]
	env, err := p.environment(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("the environment: %w", err)
	}
	command := slices.Clone(p.image.entrypoint)
	if len(c.Command) > 0 {
		command = expandAll(c.Command, env)
	}
	command = append(command, p.listen(expandAll(c.Args, env))...)
	attributes := syscall.SysProcAttr{Chroot: p.root}
	uid, gid := p.runAsUser(), p.runAsGroup()
	if os.Geteuid() == 0 {
		attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid),
			Groups: p.groups()}
	} else {
		// A user who is not root may still have a root directory of their own in a user namespace.
		attributes.Cloneflags = syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: os.Geteuid(),
			Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: os.Getegid(),
			Size: 1}}
	}
	dir := cmp.Or(c.WorkingDir, p.image.workingDir, "/")
	return &executable.Spec{Name: p.object.Name, Command: command, Env: env.list(), Dir: dir,
		Logs: p.node.Logs, Attributes: attributes}, nil
}

// listen has a program listen at the pod's address in place of all of this machine: with the flags
// that name ports, or else by the flag --bind-address.
func (p *pod) listen(args []string) []string {
	named := false
	for i, arg := range args {
		if name, port, ok := strings.Cut(arg, "-bind-address=:"); ok {
			args[i] = name + "-bind-address=" + net.JoinHostPort(p.ip, port)
			named = true
		}
	}
	if named {
		return args
	}
	return append(args, "--bind-address="+p.ip)
}

func (p *pod) runAsUser() int {
	if s := p.object.Spec.Containers[0].SecurityContext; s != nil && s.RunAsUser != nil {
		return int(*s.RunAsUser)
	}
	if s := p.object.Spec.SecurityContext; s != nil && s.RunAsUser != nil {
		return int(*s.RunAsUser)
	}
	return p.image.user
}

func (p *pod) runAsGroup() int {
	if s := p.object.Spec.Containers[0].SecurityContext; s != nil && s.RunAsGroup != nil {
		return int(*s.RunAsGroup)
	}
	if s := p.object.Spec.SecurityContext; s != nil && s.RunAsGroup != nil {
		return int(*s.RunAsGroup)
	}
	return 0
}

// groups are the supplementary groups.
func (p *pod) groups() []uint32 {
	var groups []uint32
	if s := p.object.Spec.SecurityContext; s != nil {
		if s.FSGroup != nil {
			groups = append(groups, uint32(*s.FSGroup))
		}
		for _, g := range s.SupplementalGroups {
			groups = append(groups, uint32(g))
		}
	}
	return groups
}

// writeStatus keeps the status of the pod's object up to date.
func (p *pod) writeStatus(ctx context.Context) {
	p.change(func(*containerStatus) {})
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.unsynced:
		}
		// The API server may be away for a while.
		_ = wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true,
			func(ctx context.Context) (bool, error) {
				err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
					return p.writeStatusOnce(ctx)
				})
				return err == nil || apierrors.IsNotFound(err), nil
			})
	}
}

func (p *pod) writeStatusOnce(ctx context.Context) error {
	pods := p.node.Client.CoreV1().Pods(p.object.Namespace)
	object, err := pods.Get(ctx, p.object.Name, metav1.GetOptions{})
	if err != nil || object.UID != p.object.UID {
		return err
	}
	p.mu.Lock()
	s := p.status
	p.mu.Unlock()
	now := metav1.Now()
	condition := func(kind corev1.PodConditionType, is bool) corev1.PodCondition {
		status := corev1.ConditionFalse
		if is {
			status = corev1.ConditionTrue
		}
		for _, c := range object.Status.Conditions {
			if c.Type == kind && c.Status == status {
				return c
			}
		}
		return corev1.PodCondition{Type: kind, Status: status, LastTransitionTime: now}
	}
	object.Status.Conditions = []corev1.PodCondition{
		condition(corev1.PodScheduled, true), condition(corev1.PodReadyToStartContainers, true),
		condition(corev1.PodInitialized, true),
		condition(corev1.ContainersReady, s.ready), condition(corev1.PodReady, s.ready),
	}
	object.Status.Phase = corev1.PodRunning
	object.Status.HostIP, object.Status.PodIP = "127.0.0.1", p.ip
	object.Status.HostIPs, object.Status.PodIPs = []corev1.HostIP{{IP: "127.0.0.1"}},
		[]corev1.PodIP{{IP: p.ip}}
	if object.Status.StartTime == nil {
		object.Status.StartTime = &now
	}
	c := object.Spec.Containers[0]
	state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	if s.running {
		state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: s.since}}
	}
	object.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: c.Name, Image: c.Image, Ready: s.ready, Started: &s.started, RestartCount: s.restarts,
		State: state,
	}}
	_, err = pods.UpdateStatus(ctx, object, metav1.UpdateOptions{})
	return err
}
