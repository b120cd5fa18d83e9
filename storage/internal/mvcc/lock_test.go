package mvcc_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// hanging is a way to a database in memory on which a method hangs.
type hanging struct {
	*memdb.Database
	t testing.TB
	s *mvcc.Engine

	mu sync.Mutex
	// method hangs, "" for none, until release is closed. begun is told of each call.
	method         string
	begun, release chan struct{}
}

// openHanging opens a store that notices nothing by itself.
func openHanging(t *testing.T) *hanging {
	t.Helper()
	h := &hanging{Database: memdb.New(t.Name(), time.Now), t: t,
		begun: make(chan struct{}, 100), release: make(chan struct{})}
	b := h.Open(contract.DriverOptions{})
	b.Hook = h.hook
	const never = time.Hour
	var err error
	h.s, err = mvcc.Open(t.Context(), struct{ contract.Backend }{b}, mvcc.Config{
		Timeout: never, RetryFor: never, PollActive: never, PollIdle: never,
		Compaction: mvcc.CompactionPolicy{Window: -1}})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *hanging) hook(ctx context.Context, method string) error {
	h.mu.Lock()
	hangs := method == h.method
	h.mu.Unlock()
	if !hangs {
		return nil
	}
	h.begun <- struct{}{}
	select {
	case <-h.release:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hang makes a method hang from now on.
func (h *hanging) hang(method string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.method = method
}

// inTime checks that a call returns when its context ends.
func (h *hanging) inTime(what string, call func(context.Context) error) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 20*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	select {
	case err := <-done:
		if !errors.Is(err, context.DeadlineExceeded) {
			h.t.Errorf("%s ended with %v", what, err)
		}
	case <-time.After(10 * time.Second):
		h.t.Errorf("%s does not return, though its time is over", what)
	}
}

// TestHangingQueryBlocksNobody: a caller whose time is over returns, though a query hangs that
// another caller has begun, or that this one has begun for all.
func TestHangingQueryBlocksNobody(t *testing.T) {
	for name, test := range map[string]struct {
		// method hangs. prepare, if not nil, runs first, and then call, again and again.
		method  string
		prepare func(t *testing.T, h *hanging)
		call    func(ctx context.Context, h *hanging) error
		// alone: no call has to be under way already.
		alone bool
	}{
		"fence": {method: "Identity", call: func(ctx context.Context, h *hanging) error {
			_, err := h.s.Fence(ctx)
			return err
		}},
		"read of another history": {method: "Identity", alone: true, prepare: func(
			t *testing.T, h *hanging,
		) {
			other, err := mvcc.Open(t.Context(), h.Open(contract.DriverOptions{}), mvcc.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			if _, err := other.Fence(t.Context()); err != nil {
				t.Fatal(err)
			}
		}, call: func(ctx context.Context, h *hanging) error {
			_, err := h.s.Range(ctx, mvcc.RangeOptions{Start: "/", End: "0"})
			return err
		}},
		"expiry": {method: "Expired", call: func(ctx context.Context, h *hanging) error {
			return h.s.DeleteExpired(ctx)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := openHanging(t)
			h.hang(test.method)
			if test.prepare != nil {
				test.prepare(t, h)
			}
			var first sync.WaitGroup
			if !test.alone {
				first.Go(func() {
					if err := test.call(t.Context(), h); err != nil {
						t.Errorf("the first caller: %v", err)
					}
				})
				<-h.begun
			}
			for range 3 {
				h.inTime("a caller", func(ctx context.Context) error { return test.call(ctx, h) })
			}
			close(h.release)
			first.Wait()
			if err := test.call(t.Context(), h); err != nil {
				t.Errorf("afterwards: %v", err)
			}
			if err := h.s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("previous value", func(t *testing.T) {
		h := openHanging(t)
		defer h.s.Close()
		w, err := h.s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: h.s.Delivered()})
		if err != nil {
			t.Fatal(err)
		}
		put(t, h.s, "/a", put(t, h.s, "/a", 0, "before"), "after")
		e := next(t, w, 2)[1]
		h.hang("Values")
		previous := func(ctx context.Context) error {
			v, err := h.s.PrevValue(ctx, e)
			if err == nil && string(v) != "before" {
				t.Errorf("the previous value is %q", v)
			}
			return err
		}
		first := make(chan error, 1)
		go func() { first <- previous(t.Context()) }()
		<-h.begun
		h.inTime("a watcher", previous)
		close(h.release)
		if err := <-first; err != nil {
			t.Error(err)
		}
		if err := previous(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestCloseWhileHistoryIsLookedInto: the end of a store ends what looks into the history, and waits
// for it.
func TestCloseWhileHistoryIsLookedInto(t *testing.T) {
	h := openHanging(t)
	h.hang("Identity")
	fenced := make(chan error, 2)
	for range cap(fenced) {
		go func() {
			_, err := h.s.Fence(t.Context())
			fenced <- err
		}()
	}
	<-h.begun
	if err := h.s.Close(); err != nil {
		t.Fatal(err)
	}
	for range cap(fenced) {
		if err := <-fenced; err == nil {
			t.Error("a closed store was fenced")
		}
	}
	if _, err := h.s.Fence(t.Context()); !errors.Is(err, contract.ErrClosed) {
		t.Errorf("a fence of a closed store: %v", err)
	}
}
