package mvcc

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// TestScheduler: turns are taken a few at a time, and one that takes long keeps nobody waiting.
func TestScheduler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, began := NewScheduler(), time.Now()
		var ends []func()
		take := func(after time.Duration) {
			t.Helper()
			end, err := s.turn(t.Context())
			if err != nil || time.Since(began) != after {
				t.Fatalf("a turn after %v, want it after %v: %v", time.Since(began), after, err)
			}
			ends = append(ends, end)
		}
		for range schedulerTurns {
			take(0)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.turn(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("a turn for nobody: %v", err)
		}
		ends[0]()
		take(0)
		take(turnLasts)
		for _, end := range ends {
			end()
			end()
		}
		for range schedulerTurns {
			take(turnLasts)
		}
		if len(s.turns) != schedulerTurns {
			t.Errorf("%d turns are taken", len(s.turns))
		}
		for _, end := range ends {
			end()
		}
	})
}

// TestCompactionWaitsForItsTurn: what a store does in the background waits while other stores have
// all turns.
func TestCompactionWaitsForItsTurn(t *testing.T) {
	for what, do := range map[string]func(*Engine, context.Context) error{
		"a pass": func(s *Engine, ctx context.Context) error {
			_, err := s.compactOnce(ctx)
			return err
		},
		"a sweep":     (*Engine).Sweep,
		"expiry":      (*Engine).DeleteExpired,
		"measurement": func(s *Engine, ctx context.Context) error { return s.measure(ctx, &measured{}) },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		s := &Engine{b: &limited{}, ctx: t.Context(), metrics: NewMetrics(), hub: &hub{}}
		s.cfg = Config{Scheduler: NewScheduler()}.withDefaults()
		s.tailer = newTailer(s)
		s.tailer.poll.last = pollAnswer{Polled: contract.Polled{Quota: contract.Quota{Objects: 1}}, began: time.Now()}
		for range schedulerTurns {
			s.cfg.Scheduler.turns <- struct{}{}
		}
		done := make(chan error)
		go func() { done <- do(s, ctx) }()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%s without a turn: %v", what, err)
		}
	}
}

// TestReplaysOfManyStores: watchers of all stores together read the log a few at a time, so that
// those who follow it have a connection.
func TestReplaysOfManyStores(t *testing.T) {
	cfg := Config{Scheduler: NewScheduler()}.withDefaults()
	var ends []func()
	for range schedulerReplays {
		end, err := cfg.Scheduler.replay(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	s := &Engine{b: &limited{}, ctx: t.Context(), cfg: cfg, replays: make(chan struct{}, 2)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := (&Watcher{s: s}).replay(ctx, 1)
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a watcher without a turn: %v", err)
	}
	if len(s.replays) > 0 {
		t.Error("a watcher that has given up keeps its place")
	}
	for _, end := range ends {
		end()
	}
	if end, err := cfg.Scheduler.replay(t.Context()); err != nil {
		t.Error(err)
	} else {
		end()
	}
	if end, err := (*Scheduler)(nil).replay(t.Context()); err != nil {
		t.Error(err)
	} else {
		end()
	}
}

// limited is a backend that must not be asked.
type limited struct{ contract.Backend }
