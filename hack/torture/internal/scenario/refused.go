package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/api"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/database"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/rows"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// refusal is how servers behave whose database refuses writes.
type refusal struct {
	// code is the HTTP status of a write, and retry: it says when to try again.
	code  int
	retry bool
	// ready: reads go on, and so /readyz is true.
	ready bool
	// some: room is freed meanwhile, and writes may be taken that find it.
	some bool
}

var refusals = map[programs.Kind]refusal{
	programs.SQLite:   {code: http.StatusInsufficientStorage, ready: true, some: true},
	programs.Postgres: {code: http.StatusInsufficientStorage, ready: true},
	programs.MariaDB:  {code: http.StatusServiceUnavailable, retry: true},
	programs.MySQL:    {code: http.StatusServiceUnavailable, retry: true},
}

// wrong says what is wrong with the answer of a write, and of /readyz after it, nil if nothing is.
// refused tells whether the write was refused as it should be.
func (r refusal) wrong(write, ready error) (refused bool, err error) {
	var status *api.StatusError
	switch {
	case write == nil && !r.some:
		return false, errors.New("a write was taken")
	case write != nil && (!errors.As(write, &status) || status.Code != r.code ||
		status.RetryAfter != r.retry):
		return false, fmt.Errorf("a write was answered by %w, and not by %d (Retry-After: %t)",
			write, r.code, r.retry)
	case r.ready && ready != nil:
		return false, fmt.Errorf("reads go on, and /readyz fails: %w", ready)
	case !r.ready && ready == nil:
		return false, errors.New("nothing is read or written, and /readyz is true")
	}
	return write != nil, nil
}

func openRefusing(ctx context.Context, e *Env) (database.Database, error) {
	switch e.Kind {
	case programs.SQLite:
		return openSmall(ctx, e)
	case programs.Postgres:
		return openExhaustible(ctx, e)
	}
	return database.NewServed(ctx, e.Kind, e.ways(), dbserver.Options{})
}

// writesRefused has the database refuse writes for a while. Each server has to answer so, and say
// by /readyz whether it is of use.
func writesRefused(ctx context.Context, e *Env) error {
	refuse := map[programs.Kind]func(context.Context, *Env) (mend func() error, err error){
		programs.SQLite: func(_ context.Context, e *Env) (func() error, error) {
			return e.DB.(*database.Small).Fill()
		},
		programs.Postgres: exhaust,
		programs.MariaDB:  readOnly("read_only"),
		programs.MySQL:    readOnly("super_read_only", "read_only"),
	}[e.Kind]
	mend, err := refuse(ctx, e)
	if err != nil {
		return err
	}
	want := refusals[e.Kind]
	ask := func(i int) func(context.Context) error {
		return func(ctx context.Context) error {
			write := e.Load.Probe(ctx, i)
			refused, err := want.wrong(write, e.ready(i)(ctx))
			if err == nil && !refused {
				err = errors.New("a write was taken")
			}
			return err
		}
	}
	for i := range e.Servers {
		// The servers may have lost their connections with the beginning of the fault.
		if err := until(ctx, time.Minute, ask(i)); err != nil && ctx.Err() == nil {
			e.Fail("refused", "server %d, whose database refuses writes: %v", i, err)
		}
	}
	e.Say("writes are refused")
	refused := 0
	for end := time.Now().Add(e.held(2*time.Second, 20*time.Second)); ctx.Err() == nil &&
		time.Now().Before(end); Wait(ctx, 50*time.Millisecond) {
		for i := range e.Servers {
			write := e.Load.Probe(ctx, i)
			was, err := want.wrong(write, e.ready(i)(ctx))
			if err != nil && ctx.Err() == nil {
				e.Fail("refused", "server %d, whose database refuses writes: %v", i, err)
			}
			if was {
				refused++
			}
		}
	}
	e.Note("%d more writes were refused by %d, with /readyz %t", refused, want.code, want.ready)
	began := time.Now()
	err = mend()
	e.Say("it was mended within %.1f s", time.Since(began).Seconds())
	return err
}

// readOnly sets variables of the MySQL family, and sets them back, the last one first: MySQL ends
// the one with the other.
func readOnly(variables ...string) func(context.Context, *Env) (func() error, error) {
	return func(ctx context.Context, e *Env) (func() error, error) {
		set := func(to int) error {
			for _, v := range variables {
				if _, err := e.Rows.ExecContext(ctx, fmt.Sprintf("SET GLOBAL %s = %d", v,
					to)); err != nil {
					return err
				}
			}
			return nil
		}
		return func() error { return set(0) }, set(1)
	}
}

// exhaustible is a PostgreSQL server that can be brought to its last transaction number.
type exhaustible struct {
	*database.Served
	data string
}

func openExhaustible(ctx context.Context, e *Env) (database.Database, error) {
	served, data, err := openOnDisk(ctx, e, nil)
	if err != nil {
		return nil, err
	}
	admin, err := rows.Open(served.Direct(), "", "")
	if err == nil {
		// Afterwards, every database is vacuumed.
		_, err = admin.ExecContext(ctx, "ALTER DATABASE template0 ALLOW_CONNECTIONS true")
		err = errors.Join(err, admin.Close())
	}
	if err != nil {
		return nil, errors.Join(err, served.Close())
	}
	return &exhaustible{served, data}, nil
}

// nextNumber is the transaction number to go on with. A server whose oldest number is that of a new
// cluster, below 900,000, gives no more between 2^31 - 3,000,000 numbers later and 2^31 later. The
// number is the first one of a file of the commit log, so that none of its files is missing.
const nextNumber = 2046 << 20

// exhaust sets the next transaction number forward, as if the server had given two thousand
// millions, and none of their rows had been frozen. A long transaction keeps the server from
// freezing them by itself: it holds a lock that conflicts with VACUUM alone. mend ends it, and
// freezes them.
func exhaust(ctx context.Context, e *Env) (mend func() error, err error) {
	db := e.DB.(*exhaustible)
	if !e.Long {
		// A server looks for 30 s into a write whose outcome was unknown when the database stopped,
		// which takes a write, before it says that writes are refused.
		defer e.Load.HoldWrites()()
	}
	if err := db.Stop(ctx); err != nil {
		return nil, err
	}
	if err := db.reset(ctx); err != nil {
		return nil, err
	}
	if err := db.Start(ctx); err != nil {
		return nil, err
	}
	admin, err := rows.Open(db.Direct(), "", "")
	if err != nil {
		return nil, err
	}
	tx, err := admin.BeginTx(context.WithoutCancel(ctx), nil)
	if err == nil {
		_, err = tx.ExecContext(ctx,
			"LOCK TABLE rowkeeper_schema IN SHARE UPDATE EXCLUSIVE MODE")
	}
	if err != nil {
		return nil, errors.Join(err, admin.Close())
	}
	return func() error {
		if err := errors.Join(tx.Rollback(), admin.Close()); err != nil {
			return err
		}
		for _, name := range []string{"template0", "template1", "postgres", "rowkeeper"} {
			if err := vacuum(ctx, db.Direct(), name); err != nil {
				return fmt.Errorf("vacuum %s: %w", name, err)
			}
		}
		return nil
	}, nil
}

func vacuum(ctx context.Context, rawURL, name string) error {
	u, err := url.Parse(rawURL)
	if err != nil {
		return err
	}
	u.Path = "/" + name
	db, err := rows.Open(u.String(), "", "")
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, "VACUUM (FREEZE)")
	return err
}

// reset runs pg_resetwal as the owner of the files, which it asks for.
func (x *exhaustible) reset(ctx context.Context) error {
	bin, err := programs.FindPostgres()
	if err != nil {
		return err
	}
	var owner syscall.Stat_t
	if err := syscall.Stat(x.data, &owner); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "pg_resetwal"), "-x",
		fmt.Sprint(nextNumber), "-D", x.data)
	cmd.Dir = x.data
	if os.Geteuid() != int(owner.Uid) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid,
			Gid: owner.Gid}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pg_resetwal: %w: %s", err, out)
	}
	return nil
}
