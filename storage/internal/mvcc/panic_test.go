package mvcc_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// TestPanicInTheBackground: where somebody opens a store again, a panic of what it does by itself
// closes it, and not the process. A caller that waits for a write learns that nobody knows its
// outcome, or that it was not begun.
func TestPanicInTheBackground(t *testing.T) {
	for _, method := range []string{"Commit", "Changed", "Expired", "Lapsing", "Quota", "Locked",
		"State"} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := openBackend(t, inMemory(t)).(*memdb.Backend)
				var armed atomic.Bool
				b.Hook = func(_ context.Context, called string) error {
					if called == method && armed.Load() {
						panic("planted")
					}
					return nil
				}
				var out bytes.Buffer
				s, err := mvcc.Open(t.Context(), b, mvcc.Config{Reopened: true,
					Logger: slog.New(slog.NewTextHandler(&out, nil)), Compaction: mvcc.CompactionPolicy{Window: -1}})
				if err != nil {
					t.Fatal(err)
				}
				if _, _, err := s.GrantLease(t.Context(), 7, 60); err != nil {
					t.Fatal(err)
				}
				armed.Store(true)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				switch method {
				case "Commit":
					_, err := s.Commit(ctx, contract.Mutation{Key: "/k"})
					if !errors.Is(err, contract.ErrUnknownOutcome) {
						t.Error(err)
					}
				case "Locked":
					if _, _, err := s.RenewLease(ctx, 7); err == nil {
						t.Error("a lease was renewed")
					}
				case "State":
					if _, err := s.Head(ctx); err == nil {
						t.Error("the head was read")
					}
				}
				<-s.Dropped()
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				if _, err := s.Commit(t.Context(), contract.Mutation{Key: "/k"}); err == nil ||
					!s.Broken() {
					t.Errorf("after the panic a write is answered by %v", err)
				}
				if log := out.String(); strings.Count(log, "planted") != 1 ||
					!strings.Contains(log, "TestPanicInTheBackground") {
					t.Errorf("the log has %s", log)
				}
			})
		})
	}
}

// TestPanicInARest: what is due before a store is closed may panic, too.
func TestPanicInARest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := openBackend(t, inMemory(t)).(*memdb.Backend)
		var armed atomic.Bool
		b.Hook = func(_ context.Context, called string) error {
			if called == "FirstAt" && armed.Load() {
				panic("planted")
			}
			return nil
		}
		s, err := mvcc.Open(t.Context(), b, mvcc.Config{Reopened: true,
			Logger: slog.New(slog.DiscardHandler), Compaction: mvcc.CompactionPolicy{Keep: 1}})
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if _, err := s.Commit(t.Context(), contract.Mutation{Key: "/k", Expect: contract.Any}); err != nil {
				t.Fatal(err)
			}
		}
		armed.Store(true)
		if _, err := s.Rest(t.Context()); !errors.Is(err, contract.ErrClosed) || !s.Broken() {
			t.Errorf("a rest that panics is answered by %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
