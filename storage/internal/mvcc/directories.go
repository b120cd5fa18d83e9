package mvcc

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/cenkalti/backoff/v5"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// directories are those that this process serves and has not recorded yet.
type directories struct {
	mu      sync.Mutex
	waiting []contract.Directory
	// recording: a goroutine records them, until none is left.
	recording bool
	closed    bool
}

// Serves has it recorded in the background that the process serves a resource from a directory, for
// people who read the database by SQL. Nobody waits for it, and nothing else fails if it fails.
func (s *Engine) Serves(d contract.Directory) {
	s.directories.mu.Lock()
	defer s.directories.mu.Unlock()
	if s.directories.closed || slices.Contains(s.directories.waiting, d) {
		return
	}
	s.directories.waiting = append(s.directories.waiting, d)
	if !s.directories.recording {
		s.directories.recording = true
		s.background.Go(s.guarded(s.recordDirectories))
	}
}

// recordDirectories records what is waiting, in one transaction. It tries again until the store
// closes, unless the database says that it is of no use.
func (s *Engine) recordDirectories() {
	for {
		s.directories.mu.Lock()
		served := slices.Clone(s.directories.waiting)
		s.directories.recording = len(served) > 0
		s.directories.mu.Unlock()
		if len(served) == 0 {
			return
		}
		_, err := backoff.Retry(s.ctx, func() (struct{}, error) {
			err := s.RecordDirectories(s.ctx, served)
			class := contract.ClassOf(err)
			if errors.Is(err, contract.ErrDropped) || class == contract.Denied ||
				class == contract.Invalid || class == contract.Data {
				err = backoff.Permanent(err)
			}
			return struct{}{}, err
		}, backoff.WithMaxElapsedTime(0)) // the pauses grow to a minute
		if err != nil && s.ctx.Err() == nil && !errors.Is(err, contract.ErrDropped) {
			s.log.Warn("it is not recorded where the objects of resources are, so the views for SQL "+
				"say less than they could: mend the cause, and restart the server", "err", err)
		}
		s.directories.mu.Lock()
		s.directories.waiting = slices.Delete(s.directories.waiting, 0, len(served))
		s.directories.mu.Unlock()
	}
}

// RecordDirectories records directories, as far as they are not recorded yet.
func (s *Engine) RecordDirectories(ctx context.Context, served []contract.Directory) error {
	_, err := s.read(ctx, func(ctx context.Context) (contract.State, error) {
		return contract.RecordDirectories(ctx, s.b, s.Epoch(), served)
	})
	return err
}

// close lets nothing more be recorded.
func (d *directories) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
}
