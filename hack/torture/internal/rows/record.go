package rows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
)

// Recorder records the log while it is written.
type Recorder struct {
	h *history.History

	mu     sync.Mutex
	db     *DB
	epochs []history.Epoch
	last   history.Row // the newest recorded row, with its token
	missed int64
	// survived is what the next fence finds, if a scenario has said so; begun is when the history
	// began to change.
	survived, begun int64

	stop context.CancelFunc
	done chan struct{}
}

// Record begins at the newest row.
func Record(ctx context.Context, h *history.History, db *DB) (*Recorder, error) {
	head, err := db.Head(ctx)
	if err != nil {
		return nil, err
	}
	rows, _, err := db.Log(ctx, head, 1)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, errors.New("the log has no newest row")
	}
	r := &Recorder{h: h, db: db, last: rows[len(rows)-1], epochs: make([]history.Epoch, 1),
		survived: -1, done: make(chan struct{})}
	ctx, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	go r.run(ctx)
	return r, nil
}

// interval is how often the log is read. Compaction has to keep what is written meanwhile.
const interval = 20 * time.Millisecond

func (r *Recorder) run(ctx context.Context) {
	defer close(r.done)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// The database may be away; what it holds is read when it is back.
		_ = r.read(ctx)
	}
}

// piece is how many revisions are read at a time.
const piece = 2000

// leap is less than a fence jumps, and more than a database without a fence could write between two
// readings.
const leap = 1 << 28

// read reads what is new.
func (r *Recorder) read(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		opCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
		rows, more, err := r.db.Log(opCtx, r.last.Revision, piece)
		var compacted int64
		if err == nil {
			compacted, err = r.db.Compacted(opCtx)
		}
		cancel()
		if err != nil {
			return err
		}
		for len(rows) > 0 && rows[0].Revision == r.last.Revision && rows[0].Token == r.last.Token {
			rows = rows[1:]
		}
		for _, row := range rows {
			if row.Key == marker {
				if err := r.fence(ctx, row); err != nil {
					return err
				}
				continue
			}
			if row.Revision-r.last.Revision > leap && compacted < row.Revision {
				// The marker of a fence was swept before it could be read. The fence has set the
				// boundary to it.
				if err := r.fence(ctx, history.Row{Revision: compacted, Key: marker}); err != nil {
					return err
				}
			}
			if r.survived >= 0 && len(r.epochs[len(r.epochs)-1].Rows) > 0 &&
				row.Revision <= r.last.Revision && row.Token != r.last.Token {
				return nil // written after the loss: the fence reads them
			}
			if gap := row.Revision - r.last.Revision - 1; gap > 0 && row.Revision-1 <= compacted {
				r.missed += gap
			}
			e := &r.epochs[len(r.epochs)-1]
			e.Rows = append(e.Rows, row)
			r.last = row
		}
		if !more {
			return nil
		}
	}
}

// fence begins an epoch.
func (r *Recorder) fence(ctx context.Context, row history.Row) error {
	e := history.Epoch{Fence: row.Revision, Survived: r.last.Revision, Begun: r.begun,
		Noticed: r.h.Now()}
	if r.survived >= 0 {
		e.Survived = r.survived
		early, _, err := r.db.Log(ctx, r.survived+1, piece)
		if err != nil {
			return err
		}
		for _, row := range early {
			if row.Revision < e.Fence && row.Key != marker {
				e.Rows = append(e.Rows, row)
			}
		}
	}
	r.epochs = append(r.epochs, e)
	r.survived, r.begun = -1, 0
	r.last = row
	return nil
}

// Sync waits until everything that is in the log is recorded.
func (r *Recorder) Sync(ctx context.Context) error {
	for {
		err := r.read(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("record the log: %w", err)
		case <-time.After(interval):
		}
	}
}

// Head is the newest recorded revision.
func (r *Recorder) Head() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last.Revision
}

// Log is what is recorded so far.
func (r *Recorder) Log() []history.Epoch {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.epochs)
}

// Epochs is how many epochs there are so far.
func (r *Recorder) Epochs() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.epochs)
}

// Losing is called before the history changes: by the next fence, all that came after the revision
// is lost. -1: nothing is.
func (r *Recorder) Losing(survived int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.survived, r.begun = survived, r.h.Now()
}

// Swap changes the database while nobody reads it, and goes on with the one that it returns.
func (r *Recorder) Swap(change func() (*DB, error)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	db, err := change()
	if err == nil {
		r.db = db
	}
	return err
}

// Finish records the rest, and what the database holds in the end, in the history.
func (r *Recorder) Finish(ctx context.Context) error {
	r.stop()
	<-r.done
	if err := r.Sync(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Log, r.h.Missed = r.epochs, r.missed
	first := int64(0)
	for _, e := range r.epochs {
		if len(e.Rows) > 0 {
			first = e.Rows[0].Revision
			break
		}
	}
	for from := first; ; {
		rows, more, err := r.db.Log(ctx, from, piece)
		if err != nil {
			return err
		}
		for _, row := range rows {
			if row.Key != marker {
				r.h.Final = append(r.h.Final, row)
			}
		}
		if !more {
			break
		}
		from = rows[len(rows)-1].Revision + 1
	}
	var err error
	r.h.Live, err = r.db.Live(ctx)
	return err
}

// Close ends the recording without a result.
func (r *Recorder) Close() {
	r.stop()
	<-r.done
}
