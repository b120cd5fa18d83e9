package mvcc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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

// TestPanicWhenReadingAhead: a page that is read ahead may panic, too, and who waits for it is
// answered.
func TestPanicWhenReadingAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var armed atomic.Bool
		b := &paged{Backend: openBackend(t, inMemory(t)), read: make(chan contract.PageQuery, 100),
			before: func(context.Context, contract.PageQuery) error {
				if armed.Load() {
					panic("planted")
				}
				return nil
			}}
		s, err := mvcc.Open(t.Context(), b, mvcc.Config{Reopened: true,
			Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			put(t, s, contract.Key(fmt.Sprintf("/k/%d", i)), 0, "old")
		}
		next, _ := turn(t, s, firstThree, 0)
		page, err := s.Range(t.Context(), next)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the third page was read ahead
		armed.Store(true)
		next.From = page.KVs[len(page.KVs)-1].Key + "\x00"
		if page, err = s.Range(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		// The fourth one is read now.
		<-s.Dropped()
		next.From = page.KVs[len(page.KVs)-1].Key + "\x00"
		if _, err := s.Range(t.Context(), next); err == nil {
			t.Error("a store that is broken answers")
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestPanicInAPoll: a poll of several stores that panics closes none of them. They are polled one
// by one then, and the one whose poll panics is closed.
func TestPanicInAPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bad atomic.Pointer[shared]
		var alone atomic.Int64
		fault := func(_ context.Context, stores []contract.Backend) error {
			if b := bad.Load(); b != nil {
				if slices.Contains(stores, contract.Backend(b)) {
					panic("planted")
				}
				if len(stores) == 1 {
					alone.Add(1)
				}
			}
			return nil
		}
		l := &line{before: fault, beforeLook: fault}
		var stores []*mvcc.Engine
		var backends []*shared
		for i := range 3 {
			db := memdb.New(fmt.Sprint(t.Name(), i), time.Now)
			b := l.on(db)
			s, err := mvcc.Open(t.Context(), b, mvcc.Config{Polls: &l.polls, Reopened: true,
				Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			stores, backends = append(stores, s), append(backends, b)
		}
		<-time.After(time.Minute)
		bad.Store(backends[1])
		<-stores[1].Dropped()
		<-time.After(time.Minute)
		for i, s := range stores {
			if s.Broken() != (i == 1) {
				t.Errorf("store %d is broken: %t", i, s.Broken())
			}
		}
		if alone.Load() == 0 {
			t.Error("the others are polled no more")
		}
		put(t, stores[0], "/k", 0, "v")
		closeAll(t, stores...)
	})
}

// TestPanicInAnAnnouncement: an announcement that panics is one that is lost.
func TestPanicInAnAnnouncement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		b := &announcing{Backend: openBackend(t, inMemory(t)).(*memdb.Backend), panics: true}
		s, err := mvcc.Open(t.Context(), b, mvcc.Config{Reopened: true,
			Logger: slog.New(slog.NewTextHandler(&out, nil))})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			put(t, s, contract.Key(fmt.Sprint("/k/", i)), 0, "v")
			<-time.After(time.Second)
		}
		if s.Broken() {
			t.Error("the store is broken")
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if log := out.String(); strings.Count(log, "level=ERROR") != 1 || !strings.Contains(log, "planted") {
			t.Errorf("the log has %s", log)
		}
	})
}
