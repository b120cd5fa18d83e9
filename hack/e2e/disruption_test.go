package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// load is writers and watchers that go on, through the front door, while something happens to the
// server.
type load struct {
	t      *testing.T
	client dynamic.ResourceInterface
	// The writers and the watchers, each with what ends them.
	writers, watchers         sync.WaitGroup
	stopWriters, stopWatchers context.CancelFunc
	streams                   []*stream
	// relist makes watchers begin anew with a list when they are told that events are gone, as
	// informers do. Otherwise that is an error.
	relist bool

	mu      sync.Mutex
	acked   map[uint64]string // what was done, by the resourceVersion with which it was confirmed
	deleted map[string]bool   // the names of the objects whose deletion was confirmed
	retried map[string]int    // how often a write had to be tried again, by the reason
	writes  int
}

// stream is what a watcher saw that watches from the beginning, and goes on where it was after its
// connection ended.
type stream struct {
	mu            sync.Mutex
	events        []event
	gaps          []gap
	interruptions int
	lastError     error
}

// gap is between the last version before events were gone and that of the list with which the
// watcher began anew.
type gap struct{ after, upTo uint64 }

type event struct {
	version uint64
	kind    watch.EventType
	name    string
}

const (
	writerCount  = 4
	watcherCount = 3
)

// startLoad begins to write and to watch in a new namespace.
func startLoad(t *testing.T) *load {
	t.Helper()
	ns := newNamespace(t)
	writing, stopWriters := context.WithCancel(env.context)
	watching, stopWatchers := context.WithCancel(env.context)
	t.Cleanup(stopWriters)
	t.Cleanup(stopWatchers)
	l := &load{
		t: t, client: env.dynamic.Resource(pipelinesV1).Namespace(ns), stopWriters: stopWriters,
		stopWatchers: stopWatchers,
		acked:        map[uint64]string{}, deleted: map[string]bool{}, retried: map[string]int{},
	}
	list, err := l.client.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range watcherCount {
		s := &stream{}
		l.streams = append(l.streams, s)
		l.watchers.Go(func() { l.watch(watching, s, list.GetResourceVersion()) })
	}
	for i := range writerCount {
		l.writers.Go(func() { l.write(writing, i) })
	}
	return l
}

// watch collects events until ctx ends.
func (l *load) watch(ctx context.Context, s *stream, version string) {
	for ctx.Err() == nil {
		w, err := l.client.Watch(ctx, metav1.ListOptions{ResourceVersion: version,
			AllowWatchBookmarks: true})
		if err == nil {
			version, err = l.follow(w, s, version)
		}
		s.mu.Lock()
		s.interruptions++
		s.lastError = err
		s.mu.Unlock()
		switch {
		case ctx.Err() != nil:
		case err == nil:
		case l.relist && lost(err):
			list, err := l.client.List(ctx, metav1.ListOptions{})
			if err != nil {
				again(ctx)
				continue
			}
			s.mu.Lock()
			s.gaps = append(s.gaps, gap{number(l.t, version),
				number(l.t, list.GetResourceVersion())})
			s.mu.Unlock()
			version = list.GetResourceVersion()
		case lost(err):
			l.t.Errorf("a watch that was at %s has lost events: %v", version, err)
			return
		default:
			// Everything else ends the connection only.
			again(ctx)
		}
	}
}

// lost tells whether an error says that a watch cannot go on from where it was.
func lost(err error) bool { return apierrors.IsGone(err) || apierrors.IsResourceExpired(err) }

// follow reads one connection to its end, and returns from where to go on, and the error with which
// it ended, if it did with one.
func (l *load) follow(w watch.Interface, s *stream, version string) (string, error) {
	defer w.Stop()
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			return version, apierrors.FromObject(e.Object)
		}
		object := e.Object.(*unstructured.Unstructured)
		version = object.GetResourceVersion()
		if e.Type == watch.Bookmark {
			continue
		}
		s.mu.Lock()
		s.events = append(s.events, event{number(l.t, version), e.Type, object.GetName()})
		s.mu.Unlock()
	}
	return version, nil
}

// write creates, updates and deletes objects of its own, one after the other, until ctx ends.
func (l *load) write(ctx context.Context, writer int) {
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("w%d-%d", writer, n)
		created := l.try(ctx, name, "create", func() (*unstructured.Unstructured, error) {
			return l.client.Create(ctx, pipeline(name), metav1.CreateOptions{})
		})
		if created == nil {
			return
		}
		for i := range 3 {
			updated := l.try(ctx, name, "update", func() (*unstructured.Unstructured, error) {
				created.SetLabels(map[string]string{"n": strconv.Itoa(i)})
				return l.client.Update(ctx, created, metav1.UpdateOptions{})
			})
			if updated == nil {
				return
			}
			created = updated
		}
		if l.try(ctx, name, "delete", func() (*unstructured.Unstructured, error) {
			return nil, l.client.Delete(ctx, name, metav1.DeleteOptions{})
		}) == nil {
			return
		}
	}
}

// try makes a write until it was confirmed. One that was not may have happened nevertheless: then
// the object's state tells, since nobody else writes it. It returns the object as it is now, nil if
// ctx has ended or the write failed for good.
func (l *load) try(ctx context.Context, name, what string,
	write func() (*unstructured.Unstructured, error)) *unstructured.Unstructured {
	for unsure := false; ; {
		object, err := write()
		if ctx.Err() != nil {
			return nil
		}
		switch {
		case err == nil:
			if what == "delete" {
				l.confirmDeletion(name)
				return pipeline(name)
			}
			l.confirm(what+" "+name, object)
			return object
		case unsure && (what == "create" && apierrors.IsAlreadyExists(err) ||
			what == "update" && apierrors.IsConflict(err)):
			// The first try had succeeded.
			if object = l.get(ctx, name); object == nil {
				return nil
			}
			l.confirm(what+" "+name, object)
			return object
		case unsure && what == "delete" && apierrors.IsNotFound(err):
			l.confirmDeletion(name)
			return pipeline(name)
		case !retryable(err):
			l.t.Errorf("%s %s fails: %v", what, name, err)
			return nil
		}
		unsure = true
		l.mu.Lock()
		l.retried[reason(err)]++
		l.mu.Unlock()
		again(ctx)
	}
}

func (l *load) get(ctx context.Context, name string) *unstructured.Unstructured {
	for {
		object, err := l.client.Get(ctx, name, metav1.GetOptions{})
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			return object
		case !retryable(err):
			l.t.Errorf("get %s fails: %v", name, err)
			return nil
		}
		again(ctx)
	}
}

func (l *load) confirm(what string, object *unstructured.Unstructured) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes++
	l.acked[number(l.t, object.GetResourceVersion())] = what
}

func (l *load) confirmDeletion(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes++
	l.deleted[name] = true
}

// confirmed is how many writes were confirmed so far.
func (l *load) confirmed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.writes
}

// progress waits until n more writes were confirmed.
func (l *load) progress(n int) {
	l.t.Helper()
	want := l.confirmed() + n
	eventually(l.t, 2*time.Minute, func() error {
		if got := l.confirmed(); got < want {
			return fmt.Errorf("%d writes are confirmed, want %d", got, want)
		}
		return nil
	})
}

// finish ends the writers, waits until the watchers have everything, and compares.
func (l *load) finish() {
	l.t.Helper()
	l.stopWriters()
	l.writers.Wait()
	created, err := l.client.Create(env.context, pipeline("last"), metav1.CreateOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	l.confirm("create last", created)
	last := number(l.t, created.GetResourceVersion())
	for i, s := range l.streams {
		eventually(l.t, time.Minute, func() error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.upTo(last) == nil {
				return fmt.Errorf("watcher %d has not seen the last write, %d; its last error was %w", i, last, s.lastError)
			}
			return nil
		})
	}
	l.stopWatchers()
	l.watchers.Wait()
	l.compare(last)
}

// upTo are the events before and at a version, nil if that was not seen.
func (s *stream) upTo(last uint64) []event {
	i := slices.IndexFunc(s.events, func(e event) bool { return e.version == last })
	if i < 0 {
		return nil
	}
	return s.events[:i+1]
}

// compare checks that each watcher saw every confirmed write once, in order, and the same as the
// others.
func (l *load) compare(last uint64) {
	l.t.Helper()
	first := l.streams[0].upTo(last)
	interruptions, gaps := 0, 0
	for i, s := range l.streams {
		interruptions += s.interruptions
		gaps += len(s.gaps)
		seen := s.upTo(last)
		deletions := map[string]int{}
		for j, e := range seen {
			if j > 0 && e.version <= seen[j-1].version {
				l.t.Errorf("watcher %d saw version %d after %d", i, e.version, seen[j-1].version)
			}
			if e.kind == watch.Deleted {
				deletions[e.name]++
			}
		}
		for version, what := range l.acked {
			if _, found := slices.BinarySearchFunc(seen, version, func(e event, v uint64) int {
				return cmp.Compare(e.version, v)
			}); !found && !s.inGap(version) {
				l.t.Errorf("watcher %d missed %s at version %d", i, what, version)
			}
		}
		for name := range l.deleted {
			if deletions[name] != 1 && len(s.gaps) == 0 {
				l.t.Errorf("watcher %d saw %d deletions of %s, which was deleted once", i,
					deletions[name], name)
			}
		}
		if len(s.gaps) == 0 && len(l.streams[0].gaps) == 0 && !slices.Equal(first, seen) {
			l.t.Errorf("watcher %d saw %d events, watcher 0 saw %d, or others", i, len(seen),
				len(first))
		}
	}
	l.t.Logf("%d writes were confirmed, some after further tries: %v; %d watchers saw %d events "+
		"each, with %d interruptions, after %d of which they were told to begin anew", l.writes,
		l.retried, len(l.streams), len(first), interruptions, gaps)
}

// inGap tells whether a watcher was told to have lost a version.
func (s *stream) inGap(version uint64) bool {
	return slices.ContainsFunc(s.gaps, func(g gap) bool {
		return g.after < version && version <= g.upTo
	})
}

// number parses a resourceVersion, which ours are free to be compared.
func number(t *testing.T, version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		t.Errorf("the resourceVersion %q is not a number", version)
	}
	return n
}

// retryable tells whether a client may try again after an error, as client libraries do: the server
// or the way to it was not there, or had too much to do.
func retryable(err error) bool {
	if apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) {
		return true
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		// The front door says these by itself when its connection to a replica breaks.
		code := status.Status().Code
		return code == 502 || code == 503 || code == 504
	}
	// The front door breaks the connection, or resets the stream, when its connection to a replica
	// breaks after the answer has begun.
	var reset http2.StreamError
	if errors.As(err, &reset) && reset.Code == http2.ErrCodeInternal {
		return true
	}
	return utilnet.IsProbableEOF(err) || utilnet.IsHTTP2ConnectionLost(err) ||
		errors.Is(err, io.ErrUnexpectedEOF)
}

// reason is a short name of an error that can be counted.
func reason(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return strconv.Itoa(int(status.Status().Code))
	}
	text := err.Error()
	return text[strings.LastIndex(text, ": ")+1:]
}

// again keeps a client that must try again from doing it at once.
func again(ctx context.Context) {
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
	}
}

// testRollingRestart replaces both replicas, one after the other.
func testRollingRestart(t *testing.T) {
	before := env.installation.pods(t)
	l := startLoad(t)
	l.progress(100)
	kubectl(t, "rollout", "restart", "-n", namespace, "deployment/rowkeeper")
	kubectl(t, "rollout", "status", "-n", namespace, "deployment/rowkeeper", "--timeout=3m")
	for _, old := range before {
		gone(t, 3*time.Minute, "the pod "+old.Name, func() error {
			_, err := env.client.CoreV1().Pods(namespace).Get(t.Context(), old.Name,
				metav1.GetOptions{})
			return err
		})
	}
	waitForReplicas(t, len(before))
	l.progress(100)
	l.finish()
}

// testEviction asks for the eviction of both replicas at once, as for the drain of their nodes: the
// budget allows one.
func testEviction(t *testing.T) {
	pods := env.installation.pods(t)
	l := startLoad(t)
	l.progress(50)
	evict := func(pod corev1.Pod) error {
		return env.client.PolicyV1().Evictions(namespace).Evict(t.Context(),
			&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: namespace}})
	}
	eventually(t, 30*time.Second, func() error { return evict(pods[0]) })
	expect(t, "evicting the other replica, too", evict(pods[1]), metav1.StatusReasonTooManyRequests)
	gone(t, 2*time.Minute, "the evicted pod", func() error {
		_, err := env.client.CoreV1().Pods(namespace).Get(t.Context(), pods[0].Name,
			metav1.GetOptions{})
		return err
	})
	waitForReplicas(t, 2)
	l.progress(50)
	l.finish()
}

// testKill kills a replica as a crash would, which is then started again.
func testKill(t *testing.T) {
	l := startLoad(t)
	for _, pod := range env.installation.pods(t) {
		l.progress(100)
		running := env.node.Process(pod.UID)
		if err := running.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-running.Exited()
		l.progress(100)
		waitForReplicas(t, 2)
	}
	l.progress(100)
	l.finish()
}

// testDatabaseRestart stops the database for as long as it takes the cluster to notice, and starts
// it again.
func testDatabaseRestart(t *testing.T) {
	l := startLoad(t)
	l.progress(100)
	pods := env.installation.pods(t)
	db := env.installation.database
	if err := db.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range env.installation.apiServices() {
		eventually(t, 2*time.Minute, func() error {
			status, _, err := available(t.Context(), name)
			if err == nil && status != "False" {
				err = fmt.Errorf("APIService %s has Available=%s while the database is away",
					name, status)
			}
			return err
		})
	}
	for _, pod := range pods {
		if code, body := get(t, env.directTo(t, pod, nil, ""), "/readyz?verbose"); code != 500 ||
			!strings.Contains(body, "[-]storage failed") {
			t.Errorf("/readyz of %s answers %d: %s", pod.Name, code, body)
		}
		if code, body := get(t, env.directTo(t, pod, nil, ""), "/livez"); code != 200 {
			t.Errorf("/livez of %s answers %d: %s", pod.Name, code, body)
		}
	}
	if err := db.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	env.installation.waitAvailable(t)
	t.Logf("the APIServices are available again %s after the database is",
		time.Since(began).Round(time.Millisecond))
	waitForReplicas(t, 2)
	l.progress(100)
	l.finish()
	for _, pod := range env.installation.pods(t) {
		if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.UID == pod.UID }) ||
			pod.Status.ContainerStatuses[0].RestartCount != restartsOf(pods, pod) {
			t.Errorf("the replica %s was started again because the database was away", pod.Name)
		}
	}
}

func restartsOf(pods []corev1.Pod, pod corev1.Pod) int32 {
	for _, p := range pods {
		if p.UID == pod.UID {
			return p.Status.ContainerStatuses[0].RestartCount
		}
	}
	return -1
}

// waitForReplicas waits until n pods are ready and none besides them is left.
func waitForReplicas(t *testing.T, n int) {
	t.Helper()
	eventually(t, 2*time.Minute, func() error {
		pods := env.installation.pods(t)
		ready := 0
		for _, pod := range pods {
			for _, c := range pod.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
					ready++
				}
			}
		}
		if ready != n || len(pods) != n {
			return fmt.Errorf("%d of %d pods are ready, want %d", ready, len(pods), n)
		}
		return nil
	})
}
