package scenario

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/database"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/rows"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// disk is a database with relaxed durability. The writes after keep are lost with the power.
type disk interface {
	database.Database
	// keep notes what is on the disk now.
	keep(ctx context.Context) error
	// fail ends the database, and starts it with what is on the disk.
	fail(ctx context.Context) error
}

func openRelaxed(ctx context.Context, e *Env) (database.Database, error) {
	if e.Kind == programs.SQLite {
		return newRelaxedFile(e)
	}
	settings := map[string]string{"innodb_flush_log_at_trx_commit": "0"}
	if e.Kind == programs.Postgres {
		settings = map[string]string{"fsync": "off"}
	}
	served, data, err := openOnDisk(ctx, e, settings)
	if err != nil {
		return nil, err
	}
	return &relaxedServer{served, data, filepath.Join(filepath.Dir(filepath.Dir(data)), "kept")}, nil
}

// openOnDisk starts a server whose files can be reached, and tells where they are. So it is a
// program of this machine.
func openOnDisk(ctx context.Context, e *Env, settings map[string]string) (*database.Served, string,
	error) {
	dir := filepath.Join(e.Dir, "disk")
	if err := os.Mkdir(dir, 0o777); err != nil {
		return nil, "", err
	}
	if err := os.Chmod(dir, 0o777); err != nil { // database servers run as other users
		return nil, "", err
	}
	served, err := database.NewServed(ctx, e.Kind, e.ways(),
		dbserver.Options{Dir: dir, Settings: settings})
	if err != nil {
		return nil, "", err
	}
	found, err := filepath.Glob(filepath.Join(dir, "*", "data"))
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("%s has the data directories %v", dir, found)
	}
	if err != nil {
		return nil, "", errors.Join(err, served.Close())
	}
	return served, found[0], nil
}

// relaxedServer is a server whose files go back to what they were when it was frozen.
type relaxedServer struct {
	*database.Served
	data, kept string
}

func (s *relaxedServer) keep(ctx context.Context) error {
	if err := s.Pause(ctx); err != nil {
		return err
	}
	err := copyFiles(s.data, s.kept)
	return errors.Join(err, s.Resume(ctx))
}

func (s *relaxedServer) fail(ctx context.Context) error {
	if err := s.Kill(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(s.data); err != nil {
		return err
	}
	if err := os.Rename(s.kept, s.data); err != nil {
		return err
	}
	return s.Start(ctx)
}

// relaxedFile is a file of SQLite. A power failure ends the kernel's boot, too: after it, the
// servers see another boot id, by a mount of their own.
type relaxedFile struct {
	database.Database
	e          *Env
	path, boot string
}

func newRelaxedFile(e *Env) (database.Database, error) {
	if out, err := exec.Command("unshare", "--mount", "true").CombinedOutput(); err != nil {
		return nil, &database.Missing{Reason: fmt.Sprintf("a boot id cannot be changed by "+
			"unshare, which needs root's rights: %v: %s", err, out)}
	}
	return &relaxedFile{database.NewSQLite(e.Dir), e, rows.File(filepath.Join(e.Dir, "state.db"), e.store()),
		filepath.Join(e.Dir, "boot_id")}, nil
}

func (f *relaxedFile) URL(server int) string {
	return f.Database.URL(server) + "?synchronous=NORMAL"
}

func (f *relaxedFile) keep(context.Context) error {
	if err := f.e.signalServers(syscall.SIGSTOP); err != nil {
		return err
	}
	var err error
	for _, suffix := range []string{"", "-wal"} {
		err = errors.Join(err, copyFiles(f.path+suffix, f.path+suffix+".kept"))
	}
	return errors.Join(err, f.e.signalServers(syscall.SIGCONT))
}

// fail writes into the file, which so keeps its fingerprint. Nobody has it open.
func (f *relaxedFile) fail(context.Context) error {
	if err := os.Remove(f.path + "-shm"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, suffix := range []string{"", "-wal"} {
		if err := copyFiles(f.path+suffix+".kept", f.path+suffix); err != nil {
			return err
		}
	}
	if err := os.WriteFile(f.boot, []byte(rand.Text()+"\n"), 0o644); err != nil {
		return err
	}
	for _, s := range f.e.Servers {
		s.Wrapper = []string{"unshare", "--mount", "sh", "-c",
			`mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"`, f.boot}
	}
	return nil
}

func copyFiles(from, to string) error {
	out, err := exec.Command("cp", "--archive", "--no-target-directory", from, to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cp %s: %w: %s", from, err, out)
	}
	return nil
}

// signalServers sends a signal to all servers.
func (e *Env) signalServers(signal syscall.Signal) error {
	for _, s := range e.Servers {
		if err := s.Signal(signal); err != nil {
			return err
		}
	}
	return nil
}

// restartServers ends all servers at once, has something done, and starts them.
func (e *Env) restartServers(ctx context.Context, meanwhile func() error) error {
	if err := e.signalServers(syscall.SIGSTOP); err != nil {
		return err
	}
	for _, s := range e.Servers {
		if _, err := s.End(ctx, sigkill); err != nil {
			return err
		}
	}
	if err := meanwhile(); err != nil {
		return err
	}
	for _, s := range e.Servers {
		if err := s.Start(); err != nil {
			return err
		}
	}
	for i := range e.Servers {
		if err := e.restart(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// powerFailure ends all servers together with the database. Before, it ends the servers alone,
// after which nothing may be fenced.
func powerFailure(ctx context.Context, e *Env) error {
	epochs := e.Recorder.Epochs()
	if err := e.restartServers(ctx, func() error { return nil }); err != nil {
		return err
	}
	if err := e.Recorder.Sync(ctx); err != nil {
		return err
	}
	if e.Recorder.Epochs() != epochs {
		e.Fail("fence",
			"all servers were killed, the database was not, and the history begins anew")
	}
	return e.losePower(ctx, func(lose func() error) error {
		// Nobody is told of a commit after the last record of the log.
		return e.restartServers(ctx, lose)
	})
}

// databasePowerFailure ends the database alone. Writers wait for the moment between the last record
// of the log and the failure, so that it is known what is lost.
func databasePowerFailure(ctx context.Context, e *Env) error {
	return e.losePower(ctx, func(lose func() error) error {
		release := e.Load.HoldWrites()
		defer release()
		if err := e.signalServers(syscall.SIGSTOP); err != nil {
			return err
		}
		return errors.Join(lose(), e.signalServers(syscall.SIGCONT))
	})
}

// losePower loses what was written in the last second or so. while stops the servers, calls its
// argument, and has them go on.
func (e *Env) losePower(ctx context.Context, while func(lose func() error) error) error {
	d := e.DB.(disk)
	if err := d.keep(ctx); err != nil {
		return err
	}
	e.Hold(ctx, time.Second, 3*time.Second)
	var epochs int
	err := while(func() error {
		if err := e.Recorder.Sync(ctx); err != nil {
			return err
		}
		head := e.Recorder.Head()
		epochs = e.Recorder.Epochs()
		err := e.Recorder.Swap(func() (*rows.DB, error) {
			if err := errors.Join(e.Rows.Close(), d.fail(ctx)); err != nil {
				return nil, err
			}
			found, err := rows.Open(d.Direct(), e.prefix(), e.store())
			if err == nil {
				e.Rows = found
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
		e.Say("%d revisions are lost", head-survived)
		e.Recorder.Losing(survived)
		return nil
	})
	if err != nil {
		return err
	}
	return e.awaitFence(ctx, epochs)
}
