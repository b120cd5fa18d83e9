package database

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/archive"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Backup describes a backup: everything that a store held at one revision.
type Backup struct {
	// Store is the identity of the store that it was made of. Copies of a database have the same.
	Store string
	// Revision is the newest revision that is in it.
	Revision int64
	// Objects is how many there are.
	Objects int64
	// Time is when it was made, by the database's clock.
	Time time.Time
	// Renumbered is set by RestoreBackup if the objects got other resourceVersions than they have
	// in the backup.
	Renumbered bool
}

func backupOf(h archive.Header) Backup {
	return Backup{Store: h.Store, Revision: int64(h.Revision), Objects: h.Keys, Time: h.Time}
}

// Progress is called after each object with what is being done ("reading", "checking", "writing",
// "comparing"), to how many of how many objects.
type Progress func(doing string, done, total int64)

func (p Progress) tell(doing string, done, total int64) {
	if p != nil {
		p(doing, done, total)
	}
}

var (
	// ErrNotEmpty refuses to restore a backup into a database that has objects.
	ErrNotEmpty = errors.New("the database is not empty")
	// ErrStalled ends a backup whose output takes nothing more.
	ErrStalled = errors.New("the output of the backup takes nothing more, and the database " +
		"cannot keep its snapshot for ever: write the backup to a file")
	// ErrNotConfirmed says that nobody can tell whether a backup was restored. It was as a whole,
	// or not at all.
	ErrNotConfirmed = errors.New("the database did not confirm that the backup was restored: it " +
		"may or may not be; look into it, or restore it again")
)

// WriteBackup writes everything that the database holds to w: the state at one revision, read in
// one snapshot, while servers go on. Objects are written as they are stored, so what is encrypted
// in the database is encrypted in the backup. Memory does not grow with the number of objects. w is
// not closed; after an error, what was written to it is of no use.
//
// As long as it reads, the database keeps what it would give up otherwise. So it fails with
// ErrStalled if w takes five minutes for one Write, and at once when the context ends; a Write that
// hangs is left behind then, and ends when w lets it.
//
// The format is documented in storage/internal/archive.
func (s *Store) WriteBackup(ctx context.Context, w io.Writer,
	progress Progress) (b Backup, err error) {
	return s.writeBackup(ctx, w, progress, stalledAfter)
}

// stalledAfter is how long a Write to a backup may take.
const stalledAfter = 5 * time.Minute

func (s *Store) writeBackup(ctx context.Context, to io.Writer, progress Progress,
	patience time.Duration) (b Backup, err error) {
	id, err := s.mvcc.Identity(ctx)
	if err != nil {
		return b, fmt.Errorf("cannot back up the database: %w", err)
	}
	var (
		w    = newPatientWriter(ctx, to, patience)
		out  *archive.Writer
		done int64
	)
	defer w.close()
	err = s.mvcc.Export(ctx, func(ctx context.Context, st contract.State, keys int64,
		leases []contract.LeaseRow) (err error) {
		context.AfterFunc(ctx, func() {
			if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
				w.interrupt(cause)
			}
		})
		h := archive.Header{Store: id.Store, Revision: st.Head.Revision, Keys: keys,
			Time: st.Now.UTC()}
		b = backupOf(h)
		out, err = archive.NewWriter(w, h, leases)
		return err
	}, func(r *contract.Record) error {
		if err := out.Write(r); err != nil {
			return err
		}
		done++
		progress.tell("reading", done, b.Objects)
		return nil
	})
	switch {
	case err == nil:
		_, err = out.Close()
	case out != nil:
		out.Abandon()
	}
	if err != nil {
		return b, fmt.Errorf("cannot back up the database: %w", err)
	}
	return b, nil
}

// ReadBackup reads a backup to its end, and returns an error if it is not whole, or of a newer
// format.
func ReadBackup(r io.Reader, progress Progress) (Backup, error) {
	b, _, _, err := check(r, contract.Limits{KeyBytes: contract.MaxKeyBytes, ValueBytes: contract.MaxValueBytes},
		progress)
	return b, err
}

// DescribeBackup reads only the beginning of a backup: what it says of itself.
func DescribeBackup(r io.Reader) (Backup, error) {
	in, err := archive.NewReader(r, contract.Limits{KeyBytes: contract.MaxKeyBytes,
		ValueBytes: contract.MaxValueBytes})
	if err != nil {
		return Backup{}, fmt.Errorf("the backup cannot be used: %w", err)
	}
	defer in.Close()
	return backupOf(in.Header), nil
}

// check also returns what the backup records of the stores of resources.
func check(r io.Reader, limits contract.Limits,
	progress Progress) (b Backup, sum archive.Summary, kept []byte, err error) {
	in, err := archive.NewReader(r, limits)
	if err != nil {
		return b, sum, nil, fmt.Errorf("the backup cannot be used: %w", err)
	}
	defer in.Close()
	b = backupOf(in.Header)
	for done := int64(1); ; done++ {
		r, err := in.Next()
		if errors.Is(err, io.EOF) {
			return b, in.Summary(), kept, nil
		}
		if err != nil {
			return b, sum, nil, fmt.Errorf("the backup cannot be used: %w", err)
		}
		if r.Key == placementKey {
			kept = slices.Clone(r.Value)
		}
		progress.tell("checking", done, b.Objects)
	}
}

// RestoreOptions say how to restore a backup.
type RestoreOptions struct {
	// Replace removes all that the database holds. Otherwise a database that holds objects is
	// refused with ErrNotEmpty.
	Replace bool
	// Scratch is set for a database that no server will use. It does not matter then in which
	// stores resources are kept.
	Scratch bool
	// Progress, if not nil, is told how far it is.
	Progress Progress
}

// RestoreBackup makes a backup the content of the database, which may be of another kind than the
// one that it was made of. Objects keep their UIDs, and the times at which they expire. They keep
// their resourceVersions, too, unless the backup comes from another store (see Backup.Store) and
// this database has ever been written: then its clients may know the same resourceVersions of other
// objects, and all of them get new ones, greater than any before.
//
// The backup is read twice: first to check that it is whole. Then everything is replaced in one
// transaction, in which what was written is read back and compared, and in which a new history
// begins (see Fence). So if it fails or is killed, nothing was changed; servers may be running,
// whose reads see what was before until they see what is restored, whose writes wait meanwhile or
// fail, and whose watches begin anew.
//
// It returns what was restored, and the first revision of the new history.
func (s *Store) RestoreBackup(ctx context.Context, from io.ReadSeeker,
	o RestoreOptions) (b Backup, revision int64, err error) {
	begin, err := from.Seek(0, io.SeekCurrent)
	if err != nil {
		return b, 0, fmt.Errorf("the backup cannot be read: %w", err)
	}
	b, sum, kept, err := check(&cancelable{ctx, from}, s.mvcc.Limits(), o.Progress)
	if err != nil {
		return b, 0, err
	}
	if !o.Scratch {
		if err := s.keeps(ctx, kept); err != nil {
			return b, 0, fmt.Errorf("nothing was restored: %w", err)
		}
	}
	var in *archive.Reader
	defer func() {
		if in != nil {
			in.Close()
		}
	}()
	// The database must hold the content of the file, perhaps with other revisions.
	expected := sum
	imp := &contract.Import{Store: b.Store, Head: contract.Revision(b.Revision), Replace: o.Replace}
	imp.Records = func(each func(*contract.Record) error) error {
		if in != nil {
			in.Close() // first, as it reads ahead
			in = nil
		}
		if _, err := from.Seek(begin, io.SeekStart); err != nil {
			return err
		}
		if in, err = archive.NewReader(from, s.mvcc.Limits()); err != nil {
			return err
		}
		imp.Leases = in.Leases
		renumbered := in.NewDigest()
		for done := int64(1); ; done++ {
			r, err := in.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			if err := each(r); err != nil {
				return err
			}
			if imp.Renumbered {
				renumbered.Add(r)
			}
			o.Progress.tell("writing", done, b.Objects)
		}
		if in.Summary() != sum {
			return errors.New("the backup was changed while it was read")
		}
		if expected = sum; imp.Renumbered {
			expected = renumbered.Summary()
		}
		return nil
	}
	imp.Check = func(records func(func(*contract.Record) error) error) error {
		digest, done := in.NewDigest(), int64(0)
		err := records(func(r *contract.Record) error {
			done++
			o.Progress.tell("comparing", done, b.Objects)
			digest.Add(r)
			return nil
		})
		if err == nil && digest.Summary() != expected {
			err = errors.New("what the database says that it has stored is not what is in the backup")
		}
		return err
	}
	st, err := s.mvcc.Import(ctx, imp)
	switch {
	case errors.Is(err, contract.ErrNotEmpty):
		return b, 0, ErrNotEmpty
	case err != nil && contract.ClassOf(err) == contract.Unknown:
		return b, 0, fmt.Errorf("%w (%w)", ErrNotConfirmed, err)
	case err != nil:
		return b, 0, fmt.Errorf("nothing was restored, and the database is what it was before: %w",
			err)
	}
	b.Renumbered = imp.Renumbered
	return b, int64(st.Head.Revision), nil
}

// cancelable is a reader that fails when a context has ended.
type cancelable struct {
	ctx context.Context
	io.Reader
}

func (c *cancelable) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.Reader.Read(p)
}

// patientWriter is a writer whose Write fails when the one below it has taken too long, when the
// context has ended, and when it is interrupted. It has a copy of what is being written.
type patientWriter struct {
	ctx      context.Context
	patience time.Duration
	pieces   chan []byte
	written  chan error
	// interrupts has an error with which Write fails.
	interrupts chan error
	// free is the buffer for the next piece, nil while the last one may be in use.
	free   []byte
	failed error
}

func newPatientWriter(ctx context.Context, to io.Writer, patience time.Duration) *patientWriter {
	// Neither end waits for the other one for ever: there is at most one piece, and one answer.
	w := &patientWriter{ctx: ctx, patience: patience, pieces: make(chan []byte, 1),
		written: make(chan error, 1), interrupts: make(chan error, 1), free: []byte{}}
	go func() {
		for p := range w.pieces {
			_, err := to.Write(p)
			w.written <- err
		}
	}()
	return w
}

// interrupt makes the Write that hangs fail, or the next one.
func (w *patientWriter) interrupt(err error) {
	select {
	case w.interrupts <- err:
	default: // it fails anyway
	}
}

// close lets go of the writer below, which may hang.
func (w *patientWriter) close() { close(w.pieces) }

func (w *patientWriter) Write(p []byte) (int, error) {
	if w.failed != nil {
		return 0, w.failed
	}
	piece := append(w.free[:0], p...)
	w.free = nil
	w.pieces <- piece
	timer := time.NewTimer(w.patience)
	defer timer.Stop()
	select {
	case err := <-w.written:
		w.failed = err
	case <-w.ctx.Done():
		w.failed = context.Cause(w.ctx)
	case w.failed = <-w.interrupts:
	case <-timer.C:
		w.failed = ErrStalled
	}
	if w.failed != nil {
		return 0, w.failed
	}
	w.free = piece
	return len(p), nil
}
