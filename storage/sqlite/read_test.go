package sqlite

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// endless is a read that never ends.
var endless = &sqlkit.Read{Class: sqlkit.List, SQL: `
	WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
	SELECT count(*) FROM n WHERE ?1 = 1`}

// TestInterrupt ends a statement that would never end.
func TestInterrupt(t *testing.T) {
	for _, url := range []string{fresh(t), "memory:"} {
		b := open(t, url).(*backend)
		defer b.Close()
		ctx, cancel := context.WithCancel(context.Background())
		began := false
		err := b.Query(ctx, endless, func(sqlkit.Cursor) bool { // it gets the state first
			began = true
			cancel()
			return true
		}, int64(1))
		oneSentence(t, err, contract.Unavailable, "did not answer in time")
		if !began || !errors.Is(err, context.Canceled) {
			t.Errorf("began: %v; %v", began, err)
		}
		// The connection is as good as before, and nothing of the interruption is left.
		for range 3 {
			for range b.reads.Size() {
				if _, err := b.Page(context.Background(),
					contract.PageQuery{Start: "a", End: "b", Limit: 1}); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// TestTimeout: the operation's timeout ends a statement, and not only the wait for a connection.
func TestTimeout(t *testing.T) {
	for _, url := range []string{fresh(t), "memory:"} {
		b := open(t, url).(*backend)
		defer b.Close()
		b.opts.Timeout = 20 * time.Millisecond
		// Without the timeout, this ends it.
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second,
			errors.New("the timeout has not ended the statement"))
		defer cancel()
		err := b.Query(ctx, endless, func(sqlkit.Cursor) bool { return true }, int64(1))
		oneSentence(t, err, contract.Unavailable, "did not answer in time")
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			t.Errorf("%v, %v", err, context.Cause(ctx))
		}
	}
}
