package scenario

import (
	"context"
	"syscall"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/rows"
)

// logRemoved removes SQLite's write-ahead log under all servers. They may save it and go on, or
// answer nothing more until they are started again. Then a fence tells what the file lacks.
func logRemoved(ctx context.Context, e *Env) error {
	return removeLog(ctx, e, false)
}

// LogRemovedUnmarked kills the servers first, so that nobody saves the log, and has the file say
// before the restart that no log belongs to it. So the loss is silent, which the judgement has to
// find.
func LogRemovedUnmarked(ctx context.Context, e *Env) error {
	return removeLog(ctx, e, true)
}

// removeLog removes the log, and starts the servers again. Writers wait for the moment between the
// last record of the log and its removal, so that it is known what is lost. The recorder lets go of
// the file, since a server saves the log only if nobody else has the file open.
func removeLog(ctx context.Context, e *Env, silently bool) error {
	release := e.Load.HoldWrites()
	defer release()
	if err := e.Recorder.Sync(ctx); err != nil {
		return err
	}
	head, epochs := e.Recorder.Head(), e.Recorder.Epochs()
	err := e.Recorder.Swap(func() (*rows.DB, error) {
		if silently {
			// Whoever closes a file last copies the log to it.
			if err := e.Rows.Close(); err != nil {
				return nil, err
			}
			if err := endServers(ctx, e, syscall.SIGKILL); err != nil {
				return nil, err
			}
		}
		if err := e.Rows.RemoveLog(); err != nil {
			return nil, err
		}
		release() // a server notices with its next operation
		e.Hold(ctx, 500*time.Millisecond, 5*time.Second)
		if !silently {
			if err := endServers(ctx, e, syscall.SIGTERM); err != nil {
				return nil, err
			}
		}
		found, err := rows.Open(e.DB.Direct(), e.prefix(), e.store())
		if err == nil {
			e.Rows = found
		}
		if err == nil && silently {
			_, err = found.ExecContext(ctx, "PRAGMA user_version = 0")
		}
		return found, err
	})
	if err != nil {
		return err
	}
	survived, err := e.Rows.Head(ctx)
	if err != nil {
		return err
	}
	e.Say("the file has the log up to %d; it was at %d", survived, head)
	lost := survived < head
	if !lost {
		survived = -1
	}
	e.Recorder.Losing(survived)
	for i := range e.Servers {
		if err := e.restart(ctx, i); err != nil {
			return err
		}
	}
	if err := e.Recorder.Sync(ctx); err != nil {
		return err
	}
	if lost && e.Recorder.Epochs() == epochs {
		e.Fail("fence", "the log was removed, the file lacks what came after %d, up to %d, and no "+
			"server noticed", survived, head)
		// So that the run comes to an end: informers wait for revisions that were lost.
		return e.fence(ctx, e.DB.Direct(), e.store())
	}
	return nil
}

// endServers sends all servers a signal, and waits until they have ended.
func endServers(ctx context.Context, e *Env, signal syscall.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, recoverWithin)
	defer cancel()
	for _, s := range e.Servers {
		if _, err := s.End(ctx, signal); err != nil {
			return err
		}
	}
	return nil
}
