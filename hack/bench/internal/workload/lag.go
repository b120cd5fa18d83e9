package workload

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/measure"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/object"
)

// moment is when a revision was acknowledged to its writer, or seen by a watcher. The clock is the
// machine's, so that moments of different processes can be compared.
type moment struct {
	Revision int64
	At       int64 // nanoseconds of Unix time
}

func momentOf(o runtime.Object) (moment, error) {
	at := time.Now().UnixNano()
	revision, err := object.Revision(o)
	return moment{revision, at}, err
}

// ledger keeps what writers were told, in one list for each of them.
type ledger struct {
	acks [][]moment
	last atomic.Int64
}

func newLedger(writers int) *ledger { return &ledger{acks: make([][]moment, writers)} }

func (l *ledger) record(writer int, o runtime.Object) error {
	m, err := momentOf(o)
	l.acks[writer] = append(l.acks[writer], m)
	for {
		last := l.last.Load()
		if m.Revision <= last || l.last.CompareAndSwap(last, m.Revision) {
			return err
		}
	}
}

// all lists the acknowledgements by revision, once the writers are done.
func (l *ledger) all() map[int64]int64 {
	byRevision := make(map[int64]int64)
	for _, acks := range l.acks {
		for _, m := range acks {
			byRevision[m.Revision] = m.At
		}
	}
	return byRevision
}

// follower is a watch that notes when it sees what.
type follower struct {
	watch  watch.Interface
	seen   []moment
	newest atomic.Int64
	ended  chan struct{}
	err    error
}

// follow watches all objects below a prefix from after a revision.
func follow(ctx context.Context, store storage.Interface, prefix string,
	after int64) (*follower, error) {
	w, err := store.Watch(ctx, prefix+"/", storage.ListOptions{
		ResourceVersion: strconv.FormatInt(after, 10), Recursive: true,
		Predicate: storage.SelectionPredicate{Label: labels.Everything(),
			Field: fields.Everything(), GetAttrs: object.Attributes},
	})
	if err != nil {
		return nil, err
	}
	f := &follower{watch: w, ended: make(chan struct{})}
	go f.run()
	return f, nil
}

func (f *follower) run() {
	defer close(f.ended)
	for event := range f.watch.ResultChan() {
		switch event.Type {
		case watch.Bookmark:
			continue
		case watch.Error:
			f.err = fmt.Errorf("a watch failed: %v", event.Object)
			return
		}
		m, err := momentOf(event.Object)
		if err != nil {
			f.err = err
			return
		}
		if n := len(f.seen); n > 0 && m.Revision <= f.seen[n-1].Revision {
			f.err = fmt.Errorf("a watch saw revision %d after %d", m.Revision, f.seen[n-1].Revision)
			return
		}
		f.seen = append(f.seen, m)
		f.newest.Store(m.Revision)
	}
}

// stop ends the watch. The follower's list may be read from then on.
func (f *follower) stop() error {
	f.watch.Stop()
	<-f.ended
	return f.err
}

// drainTimeout is how long followers get to see what was written.
const drainTimeout = 10 * time.Minute

// drain waits until a follower has seen a revision.
func (b *Bench) drain(ctx context.Context, followers []*follower, revision int64) error {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	report := time.Now()
	for i, f := range followers {
		for f.newest.Load() < revision {
			select {
			case <-look.C:
				if time.Since(report) > reporting {
					b.Progress("waiting for watcher %d of %d: %d revisions behind", i+1,
						len(followers), revision-f.newest.Load())
					report = time.Now()
				}
			case <-f.ended:
				return fmt.Errorf("a watch ended early: %w", f.err)
			case <-ctx.Done():
				return fmt.Errorf("a watcher has seen revision %d but not %d: %w", f.newest.Load(),
					revision, ctx.Err())
			}
		}
	}
	return nil
}

// followAll opens n watches from the newest revision on.
func (b *Bench) followAll(ctx context.Context, n int) ([]*follower, error) {
	now, err := b.Store.GetCurrentResourceVersion(ctx)
	if err != nil {
		return nil, err
	}
	followers := make([]*follower, 0, n)
	for range n {
		f, err := follow(ctx, b.Store, object.Prefix, int64(now))
		if err != nil {
			return followers, err
		}
		followers = append(followers, f)
	}
	return followers, nil
}

func stopAll(followers []*follower) error {
	var stopping sync.WaitGroup
	errs := make([]error, len(followers))
	for i, f := range followers {
		stopping.Go(func() { errs[i] = f.stop() })
	}
	stopping.Wait()
	return errors.Join(errs...)
}

// lags are the times from acknowledgement to sight, of the revisions that were acknowledged in a
// window. An event that came before the acknowledgement had no lag.
func lags(acks map[int64]int64, seen []moment, w window) measure.Latencies {
	var l measure.Latencies
	for _, m := range seen {
		at, ok := acks[m.Revision]
		if ok && at >= w.from.UnixNano() && at < w.to.UnixNano() {
			l = append(l, max(0, time.Duration(m.At-at)))
		}
	}
	return l
}
