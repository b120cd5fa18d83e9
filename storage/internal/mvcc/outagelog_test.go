package mvcc_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// lines is a log whose lines of level Info and above can be waited for.
type lines chan slog.Record

func (l lines) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (l lines) WithAttrs([]slog.Attr) slog.Handler               { return l }
func (l lines) WithGroup(string) slog.Handler                    { return l }
func (l lines) Handle(_ context.Context, r slog.Record) error {
	l <- r
	return nil
}

// next returns the next line that has the text in it.
func (l lines) next(t *testing.T, text string) slog.Record {
	t.Helper()
	for {
		select {
		case r := <-l:
			if strings.Contains(r.Message, text) {
				return r
			}
		case <-t.Context().Done():
			t.Fatalf("no line with %q came", text)
		}
	}
}

// awayBackend is a backend of which the reaper's read can fail. failed has each failure.
type awayBackend struct {
	contract.Backend
	away   atomic.Pointer[contract.Error]
	failed chan *contract.Error
}

func (b *awayBackend) Expired(ctx context.Context,
	limit int) ([]contract.Expired, time.Duration, error) {
	if err := b.away.Load(); err != nil {
		b.failed <- err
		return nil, 0, err
	}
	return b.Backend.Expired(ctx, limit)
}

// fail makes reads fail, and waits until some have.
func (b *awayBackend) fail(t *testing.T, err *contract.Error) {
	t.Helper()
	b.away.Store(err)
	for n := 0; n < 4; {
		select {
		case failed := <-b.failed:
			if failed == err {
				n++
			}
		case <-t.Context().Done():
			t.Fatal("nobody reads")
		}
	}
}

// TestReaperLogsAnOutageOnce: while the database is away, the log has one line of the reaper, and
// one when it is back. An error of another kind is another line.
func TestReaperLogsAnOutageOnce(t *testing.T) {
	db := inMemory(t)
	log := make(lines, 100)
	b := &awayBackend{Backend: openBackend(t, db), failed: make(chan *contract.Error, 1000)}
	away := contract.Errorf(contract.Unavailable, "the database is away")
	b.away.Store(away) // from the first read on
	s, err := mvcc.Open(t.Context(), b, mvcc.Config{Logger: slog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b.fail(t, away)
	b.fail(t, contract.Errorf(contract.Denied, "the password was changed"))
	b.away.Store(nil)
	var told []string
	for {
		r := log.next(t, "reap")
		told = append(told, r.Level.String()+" "+r.Message)
		if strings.Contains(r.Message, "answers again") || len(told) > 3 {
			break
		}
	}
	const cannot = "WARN cannot reap expired keys; trying again until it works"
	if got, want := strings.Join(told, "\n"), cannot+"\n"+cannot+
		"\nWARN the database answers again: can reap expired keys"; got != want {
		t.Errorf("the log has\n%s\nwant\n%s", got, want)
	}
}

// TestDeliberateFenceIsNoError: the log tells of a fence by hand as of something that was wanted,
// in the process that fences, and as of a change that others made, in the other processes.
func TestDeliberateFenceIsNoError(t *testing.T) {
	db := inMemory(t)
	here, there := make(lines, 100), make(lines, 100)
	a := open(t, db, mvcc.Config{Logger: slog.New(here)})
	b := open(t, db, mvcc.Config{Logger: slog.New(there)})
	if _, err := a.Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := here.next(t, "history"); r.Level != slog.LevelInfo {
		t.Errorf("the process that fences says %s: %s", r.Level, r.Message)
	}
	if _, err := b.Head(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := there.next(t, "history"); r.Level != slog.LevelWarn {
		t.Errorf("another process says %s: %s", r.Level, r.Message)
	}
}
