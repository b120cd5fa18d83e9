package mvcc_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// announcing is a backend that writes down what is announced.
type announcing struct {
	*memdb.Backend
	// fails is the error of every announcement. panics: each panics. hold, if not nil, holds them
	// back until it is closed.
	fails  error
	panics bool
	hold   chan struct{}

	mu        sync.Mutex
	announced []contract.Revision
}

func (b *announcing) Announce(ctx context.Context, heads []contract.Announced) error {
	b.mu.Lock()
	for _, h := range heads {
		b.announced = append(b.announced, h.Revision)
	}
	b.mu.Unlock()
	if b.hold != nil {
		<-b.hold
	}
	if b.panics {
		panic("planted")
	}
	if b.fails != nil {
		return b.fails
	}
	return b.Backend.Announce(ctx, heads)
}

func (b *announcing) told() []contract.Revision {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.announced
}

// announcers opens a process that writes, and one that listens and polls every 2 s.
func announcers(t *testing.T) (b *announcing, writer, listener *mvcc.Engine) {
	t.Helper()
	db := memdb.New("announce", time.Now)
	cfg := mvcc.Config{Compaction: mvcc.CompactionPolicy{Window: -1}}
	backend := func() *memdb.Backend { return db.Open(contract.DriverOptions{}) }
	b = &announcing{Backend: backend()}
	writer, err := mvcc.Open(t.Context(), b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if listener, err = mvcc.Open(t.Context(), backend(), cfg); err != nil {
		t.Fatal(err)
	}
	return b, writer, listener
}

// TestAnnouncements: another process learns of ten writes at once, without a poll, and of the
// writes that follow at once 10 ms later, by one announcement; while an announcement is under way,
// commits go on, and one more tells of all of them; and Close leaves nothing untold.
func TestAnnouncements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, writer, listener := announcers(t)
		defer listener.Close()
		w, err := listener.Watch(t.Context(), mvcc.WatchOptions{Prefix: "k/", After: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		synctest.Wait() // the listener has read what there was when it began to listen
		began := time.Now()
		var want []contract.Revision
		for i := range 10 {
			want = append(want, put(t, writer, contract.Key(fmt.Sprint("k/a", i)), 0, "v"))
			if batch, err := w.Next(t.Context()); err != nil || len(batch.Events) != 1 ||
				time.Since(began) != 0 {
				t.Fatalf("write %d: %+v, %v after %v", i, batch, err, time.Since(began))
			}
			synctest.Wait() // the announcement has ended
		}
		put(t, writer, "k/b", 0, "v")
		last := put(t, writer, "k/c", 0, "v")
		for seen := contract.Revision(0); seen < last; {
			batch, err := w.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			seen = batch.Progress
		}
		if after := time.Since(began); after != 10*time.Millisecond {
			t.Errorf("writes of a busy process are seen after %v", after)
		}
		want = append(want, last, last+1)
		<-time.After(time.Second)
		synctest.Wait() // the announcer is idle again
		b.hold = make(chan struct{})
		for i := range 10 {
			last = put(t, writer, contract.Key(fmt.Sprint("k/", i)), 0, "v")
			synctest.Wait()
		}
		closed := make(chan error)
		go func() { closed <- writer.Close() }()
		synctest.Wait()
		close(b.hold)
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		want = append(want, last)
		if got := b.told(); !slices.Equal(got, want) {
			t.Errorf("announced were %v, want %v", got, want)
		}
	})
}

// TestAnnouncementIsLost: a write whose announcement fails is committed, and a poll finds it.
func TestAnnouncementIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, writer, listener := announcers(t)
		defer listener.Close()
		defer writer.Close()
		b.fails = contract.Errorf(contract.Unavailable, "the queue is full")
		w, err := listener.Watch(t.Context(), mvcc.WatchOptions{Prefix: "k/", After: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		began := time.Now()
		put(t, writer, "k/a", 0, "v")
		if batch, err := w.Next(t.Context()); err != nil || len(batch.Events) != 1 ||
			time.Since(began) > 2*time.Second {
			t.Fatalf("%+v, %v after %v", batch, err, time.Since(began))
		}
		synctest.Wait()
		if told := b.told(); len(told) != 1 {
			t.Errorf("announced were %v", told)
		}
	})
}

// TestFenceIsAnnounced: other processes hear of a fence.
func TestFenceIsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, writer, listener := announcers(t)
		defer listener.Close()
		defer writer.Close()
		revision, err := writer.Fence(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if told := b.told(); len(told) != 1 || told[0] != revision {
			t.Errorf("announced were %v, want %d", told, revision)
		}
	})
}

// sharing is a backend of several that share connections.
type sharing struct{ *announcing }

// Poll tells of no store, so each asks by itself.
func (b sharing) Poll(context.Context, []contract.Backend, int) ([]contract.Polled, error) {
	return nil, contract.Errorf(contract.Unavailable, "nothing is polled")
}

// TestStoresAnnounceTogether: the heads of stores that share connections are told together, and a
// store that closes waits for its own.
func TestStoresAnnounceTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			polls  mvcc.Polls
			b      [3]*announcing
			stores [3]*mvcc.Engine
		)
		for i := range b {
			db := memdb.New(fmt.Sprint("announce ", i), time.Now)
			b[i] = &announcing{Backend: db.Open(contract.DriverOptions{})}
			var err error
			if stores[i], err = mvcc.Open(t.Context(), sharing{b[i]}, mvcc.Config{
				Compaction: mvcc.CompactionPolicy{Window: -1}, Polls: &polls}); err != nil {
				t.Fatal(err)
			}
		}
		b[0].hold = make(chan struct{})
		put(t, stores[0], "k", 0, "v")
		synctest.Wait() // its announcement is under way
		put(t, stores[1], "k", 0, "v")
		put(t, stores[2], "k", 0, "v")
		closed := make(chan error)
		go func() { closed <- stores[1].Close() }()
		synctest.Wait()
		close(b[0].hold)
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		var told [3]int
		for i := range b {
			told[i] = len(b[i].told())
		}
		if told != [3]int{1, 2, 0} && told != [3]int{1, 0, 2} {
			t.Errorf("the backends were told %v", told)
		}
		for _, i := range []int{0, 2} {
			if err := stores[i].Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
