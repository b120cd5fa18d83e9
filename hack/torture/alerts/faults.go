package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/api"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/database"
	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// prefix is that of the names of all alerts.
const prefix = "Rowkeeper"

// fault is what goes wrong, and which alerts tell of it.
type fault struct {
	name string
	// about is one sentence, for the table.
	about string
	// begin lets it go wrong, and mend ends that. A fault that is over by itself has no mend.
	begin func(ctx context.Context, e *env) (mend func() error, err error)
	// minutes is how long it lasts, as the rules count: seconds here.
	minutes int
	// small: it needs a database on a small file system.
	small bool
	// fires are the alerts that have to fire, by the kind of the database, without the prefix. It
	// has a kind that the fault can be made with, even if nothing fires. may are others that can
	// fire, as the timing of the machine has it.
	fires map[programs.Kind][]string
	may   []string
}

// quiet is a fault that nobody need be told of.
var quiet = []string{}

// on says that the same alerts fire with several kinds of databases.
func on(alerts []string, kinds ...programs.Kind) map[programs.Kind][]string {
	out := map[programs.Kind][]string{}
	for _, k := range kinds {
		out[k] = alerts
	}
	return out
}

var (
	everywhere = programs.Kinds()
	served     = []programs.Kind{programs.Postgres, programs.MariaDB, programs.MySQL}
	mysqls     = []programs.Kind{programs.MariaDB, programs.MySQL}
)

func faults() []fault {
	postgres := programs.Postgres
	return []fault{
		{name: "none", about: "no fault, under a light load",
			minutes: 30, fires: on(quiet, everywhere...)},
		{name: "heavy-load", about: "no fault: clients send as much as they can", minutes: 15,
			begin: heavyLoad, fires: on(quiet, everywhere...)},
		{name: "server-kill", about: "a server is killed and stays away", minutes: 10,
			begin: serverKill, fires: on([]string{"Down"}, everywhere...)},
		{name: "server-pause", about: "a server is frozen", minutes: 10, begin: serverPause,
			fires: on([]string{"Down"}, everywhere...),
			may:   []string{"NothingCommitted"}}, // it may hold the commit lock
		{name: "connections-reset", about: "all connections to the database are ended", minutes: 5,
			begin: connectionsReset, fires: on(quiet, served...)},
		{name: "database-away", about: "the database is stopped", minutes: 45, begin: databaseAway,
			fires: on([]string{"DatabaseAway", "NothingCommitted"}, served...),
			may:   []string{"OutcomeUnknown", "CompactionFails", "NotificationsLost"}},
		{name: "database-pause", about: "the database is frozen under load", minutes: 50,
			begin: databasePause, fires: on([]string{"DatabaseAway", "NothingCommitted",
				"OutcomeUnknown"}, served...), may: []string{"PoolExhausted", "DeliveryLags",
				"CompactionFails", "NotificationsLost"}},
		{name: "network-cut", about: "the network between one server and the database is cut",
			minutes: 20, begin: networkCut,
			fires: on([]string{"DatabaseAway", "NothingCommitted"}, served...),
			// It may have read the head just before, and not the rows up to there. On a slow
			// machine the cut lasts for more than the 30 minutes of CompactionFails.
			may: []string{"OutcomeUnknown", "NotificationsLost", "DeliveryLags", "CompactionFails"}},
		{name: "network-half-open", about: "that network takes bytes and drops them", minutes: 50,
			begin: networkHalfOpen, fires: on([]string{"DatabaseAway", "NothingCommitted"},
				served...), may: []string{"OutcomeUnknown", "PoolExhausted", "DeliveryLags",
				"CompactionFails", "NotificationsLost"}},
		{name: "network-slow", about: "that network needs 0.55 s in each direction", minutes: 30,
			begin: networkSlow, fires: on([]string{"CommitsSlow", "TailSlow"}, served...),
			may: []string{"CommitLockWaits", "NothingCommitted", "DatabaseAway", "PoolExhausted",
				"NotificationsLost", "DeliveryLags", "CompactionFails", "OutcomeUnknown"}},
		{name: "network-narrow", about: "that network lets 1 KB a second through to the server",
			minutes: 40, begin: networkNarrow,
			fires: on([]string{"DeliveryLags"}, served...),
			may: []string{"CommitsSlow", "TailSlow", "NothingCommitted", "DatabaseAway",
				"PoolExhausted", "NotificationsLost", "CompactionFails", "CommitLockWaits",
				"OutcomeUnknown"}},
		{name: "head-lock", about: "somebody else holds the commit lock (SQLite: the database's)",
			minutes: 20, begin: headLock, fires: on([]string{"NothingCommitted"}, everywhere...),
			may: []string{"CompactionFails", "CommitsSlow", "CommitLockWaits"}},
		{name: "lock-pulses", about: "somebody else holds it for 1.2 s, again and again",
			minutes: 30, begin: lockPulses,
			fires: on([]string{"CommitLockWaits", "CommitsSlow"}, everywhere...),
			may:   []string{"TailSlow"}},
		{name: "read-lock", about: "a backup holds the global read lock", minutes: 20,
			begin: readLock, fires: on([]string{"NothingCommitted"}, mysqls...),
			may: []string{"CompactionFails", "CommitsSlow", "CommitLockWaits"}},
		{name: "log-locked", about: "somebody else has the log's table for themselves, while " +
			"clients list", minutes: 25, begin: logLocked,
			fires: on([]string{"PoolExhausted", "NothingCommitted", "DatabaseAway"}, postgres),
			may: []string{"DeliveryLags", "CompactionFails", "OutcomeUnknown", "CommitsSlow",
				"TailSlow"}},
		{name: "writes-refused", about: "the database is set to read-only", minutes: 25,
			begin: writesRefused, fires: on([]string{"CommitsFail", "ReadsRefused",
				"DatabaseAway"}, served...), may: []string{"CompactionFails", "NothingCommitted",
				"DeliveryLags"}},
		{name: "rights-lost", about: "the role may not write any more", minutes: 15,
			begin: rightsLost, fires: on([]string{"CommitsFail"}, served...),
			may: []string{"DatabaseAway", "CompactionFails"}},
		{name: "password-changed", about: "the password is changed in the database alone, and " +
			"connections end", minutes: 15, begin: passwordChanged,
			fires: on([]string{"CommitsFail", "DatabaseAway"}, served...),
			may:   []string{"NotificationsLost"}},
		{name: "notifications-lost", about: "a pooler between loses LISTEN", minutes: 20,
			begin: notificationsLost, fires: on([]string{"NotificationsLost"}, postgres)},
		{name: "table-gone", about: "the log's table is not there", minutes: 15,
			begin: tableGone, fires: map[programs.Kind][]string{
				programs.SQLite:  {"NothingCommitted", "DatabaseAway"},
				postgres:         {"CommitsFail", "DatabaseAway"},
				programs.MariaDB: {"CommitsFail", "DatabaseAway"},
				programs.MySQL:   {"CommitsFail", "DatabaseAway"}},
			may: []string{"DeliveryLags", "CompactionFails"}},
		{name: "compaction-fails", about: "the database refuses to delete rows of the log",
			minutes: 40, begin: compactionFails,
			fires: on([]string{"CompactionFails"}, everywhere...)},
		{name: "sweep-behind", about: "the same for longer, after a fence by hand",
			minutes: 75, begin: sweepBehind, fires: on([]string{"CompactionFails", "SweepBehind",
				"HistoryReplaced"}, everywhere...)},
		{name: "restore", about: "an older dump is restored under running servers", minutes: 5,
			begin: restore, fires: on([]string{"HistoryReplaced"}, everywhere...),
			may: []string{"OutcomeUnknown", "CommitsFail", "NothingCommitted", "DatabaseAway"}},
		{name: "certificate", about: "a server gets a certificate that ends in five days",
			minutes: 65, begin: oldCertificate,
			fires: on([]string{"CertificateExpires"}, everywhere...)},
		{name: "disk-full", about: "the file system of the database is full", minutes: 15,
			begin: diskFull, small: true,
			fires: on([]string{"CommitsFail"}, programs.SQLite, postgres),
			may: []string{"CompactionFails", "NothingCommitted", "DatabaseAway",
				"OutcomeUnknown"}},
	}
}

func heavyLoad(ctx context.Context, e *env) (func() error, error) {
	e.use(ctx, 0)
	return func() error { e.use(ctx, rate); return nil }, nil
}

func (e *env) end(ctx context.Context, i int, signal syscall.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	_, err := e.servers[i].End(ctx, signal)
	return err
}

func (e *env) restart(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	return e.servers[i].Restart(ctx, e.targets[i].Ready)
}

func serverKill(ctx context.Context, e *env) (func() error, error) {
	return func() error { return e.restart(ctx, 1) }, e.end(ctx, 1, syscall.SIGKILL)
}

func serverPause(_ context.Context, e *env) (func() error, error) {
	return func() error { return e.servers[1].Signal(syscall.SIGCONT) },
		e.servers[1].Signal(syscall.SIGSTOP)
}

func connectionsReset(ctx context.Context, e *env) (func() error, error) {
	return nil, e.rows.EndOthers(ctx)
}

func databaseAway(ctx context.Context, e *env) (func() error, error) {
	p := e.db.(database.Process)
	return func() error { return p.Start(ctx) }, p.Stop(ctx)
}

func databasePause(ctx context.Context, e *env) (func() error, error) {
	p := e.db.(database.Process)
	return func() error { return p.Resume(ctx) }, p.Pause(ctx)
}

// heal makes the way of the second server good again.
func (e *env) heal(ctx context.Context) func() error {
	return func() error { return e.db.Network().Heal(ctx, 1) }
}

func networkCut(ctx context.Context, e *env) (func() error, error) {
	e.db.Network().Cut(1)
	return e.heal(ctx), nil
}

func networkHalfOpen(ctx context.Context, e *env) (func() error, error) {
	return e.heal(ctx), e.db.Network().Add(1, "timeout", false, `{"timeout":0}`)
}

func networkSlow(ctx context.Context, e *env) (func() error, error) {
	n := e.db.Network()
	return e.heal(ctx), errors.Join(n.Add(1, "latency", true, `{"latency":550}`),
		n.Add(1, "latency", false, `{"latency":550}`))
}

func networkNarrow(ctx context.Context, e *env) (func() error, error) {
	return e.heal(ctx), e.db.Network().Add(1, "bandwidth", false, `{"rate":1}`)
}

func headLock(ctx context.Context, e *env) (func() error, error) {
	unlock, err := e.rows.Lock(ctx)
	return func() error { unlock(); return nil }, err
}

// aside runs something again and again until it is ended.
func aside(ctx context.Context, f func(context.Context) error) (end func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var failed error
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				failed = err
				return
			}
		}
	})
	return func() error {
		cancel()
		running.Wait()
		return failed
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func lockPulses(ctx context.Context, e *env) (func() error, error) {
	return aside(ctx, func(ctx context.Context) error {
		unlock, err := e.rows.Lock(ctx)
		if err != nil {
			return err
		}
		pause(ctx, 1200*time.Millisecond)
		unlock()
		pause(ctx, 300*time.Millisecond)
		return nil
	}), nil
}

func readLock(ctx context.Context, e *env) (func() error, error) { return e.rows.ReadLock(ctx) }

// logLocked lets twelve clients list runs, which no cache has, while nobody can read the log.
func logLocked(ctx context.Context, e *env) (func() error, error) {
	tx, err := e.rows.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx,
		"LOCK TABLE rowkeeper_log IN ACCESS EXCLUSIVE MODE"); err != nil {
		return nil, errors.Join(err, tx.Rollback())
	}
	var ends []func() error
	for range 12 {
		ends = append(ends, aside(ctx, func(ctx context.Context) error {
			_, _ = e.targets[0].(*api.Endpoint).Read(ctx, api.Path("pipelineruns", "", ""))
			return nil // no answer is the fault
		}))
	}
	return func() error {
		err := tx.Rollback()
		for _, end := range ends {
			err = errors.Join(err, end())
		}
		return err
	}, nil
}

// exec runs statements as the administrator.
func (e *env) exec(ctx context.Context, statements ...string) error {
	conn, err := e.rows.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, s := range statements {
		if _, err := conn.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// between runs statements now, and others to mend what they did.
func (e *env) between(ctx context.Context, now, mend []string) (func() error, error) {
	return func() error { return e.exec(ctx, mend...) }, e.exec(ctx, now...)
}

func writesRefused(ctx context.Context, e *env) (func() error, error) {
	if e.kind == programs.Postgres {
		return e.between(ctx, []string{"ALTER SYSTEM SET default_transaction_read_only = on",
			"SELECT pg_reload_conf()"}, []string{
			"SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
			"ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()"})
	}
	return e.between(ctx, []string{"SET GLOBAL read_only = 1"},
		[]string{"SET GLOBAL read_only = 0"})
}

func rightsLost(ctx context.Context, e *env) (func() error, error) {
	if e.kind == programs.Postgres {
		return e.between(ctx, []string{"REVOKE INSERT ON rowkeeper_log FROM rotated"},
			[]string{"GRANT INSERT ON rowkeeper_log TO rotated"})
	}
	mend, err := e.between(ctx, []string{"REVOKE INSERT ON rowkeeper.* FROM rotated"},
		[]string{"GRANT INSERT ON rowkeeper.* TO rotated"})
	return func() error { return errors.Join(mend(), e.rows.EndOthers(ctx)) },
		errors.Join(err, e.rows.EndOthers(ctx))
}

func passwordChanged(ctx context.Context, e *env) (func() error, error) {
	db := e.db.(*database.Rotating)
	db.Next()
	return db.Write, errors.Join(db.Alter(ctx), e.rows.EndOthers(ctx))
}

// deafened replaces LISTEN by a statement of the same length.
type deafened struct{ io.Reader }

func (d deafened) Read(p []byte) (int, error) {
	n, err := d.Reader.Read(p)
	if at := bytes.Index(p[:n], []byte("LISTEN ")); at >= 0 {
		end := at + bytes.IndexByte(p[at:n], 0)
		copy(p[at:end], append([]byte("SELECT 1"), bytes.Repeat([]byte(" "), end-at)...))
	}
	return n, err
}

func notificationsLost(ctx context.Context, e *env) (func() error, error) {
	n := e.db.Network()
	n.Rewrite(func(r io.Reader) io.Reader { return deafened{r} })
	reset := func() error { return errors.Join(n.Reset(0), n.Reset(1)) }
	return func() error { n.Rewrite(nil); return reset() }, reset()
}

func tableGone(ctx context.Context, e *env) (func() error, error) {
	return e.between(ctx, []string{"ALTER TABLE rowkeeper_log RENAME TO elsewhere"},
		[]string{"ALTER TABLE elsewhere RENAME TO rowkeeper_log"})
}

func compactionFails(ctx context.Context, e *env) (func() error, error) {
	const drop = "DROP TRIGGER torture_keeps"
	switch e.kind {
	case programs.SQLite:
		return e.between(ctx, []string{"CREATE TRIGGER torture_keeps BEFORE DELETE ON " +
			"rowkeeper_log BEGIN SELECT RAISE(FAIL, 'it is kept'); END"}, []string{drop})
	case programs.Postgres:
		return e.between(ctx, []string{"CREATE FUNCTION torture_keeps() RETURNS trigger LANGUAGE " +
			"plpgsql AS $$ BEGIN RAISE EXCEPTION 'it is kept'; END $$",
			"CREATE TRIGGER torture_keeps BEFORE DELETE ON rowkeeper_log FOR EACH ROW EXECUTE " +
				"FUNCTION torture_keeps()"},
			[]string{drop + " ON rowkeeper_log", "DROP FUNCTION torture_keeps"})
	}
	return e.between(ctx, []string{"CREATE TRIGGER torture_keeps BEFORE DELETE ON rowkeeper_log " +
		"FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'it is kept'"}, []string{drop})
}

// sweepBehind fences first: the boundary of compaction is then millions of revisions beyond what
// was swept.
func sweepBehind(ctx context.Context, e *env) (func() error, error) {
	mend, err := compactionFails(ctx, e)
	if err != nil {
		return nil, err
	}
	if _, err := fence(ctx, e); err != nil {
		return nil, errors.Join(err, mend())
	}
	return mend, nil
}

func fence(ctx context.Context, e *env) (func() error, error) {
	out, err := exec.CommandContext(ctx, e.rowkeeper, "fence",
		"--database="+e.db.Direct()).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("rowkeeper fence: %w: %s", err, out)
	}
	return nil, err
}

func restore(ctx context.Context, e *env) (func() error, error) {
	dump, err := e.rows.Dump(ctx, e.dir)
	if err != nil {
		return nil, err
	}
	pause(ctx, 2*time.Second)
	restored, err := e.rows.Restore(ctx, dump)
	if err == nil {
		e.rows = restored
	}
	return nil, err
}

// oldCertificate replaces the certificate of a server, which follows its files, by another one of
// its authority.
func oldCertificate(_ context.Context, e *env) (func() error, error) {
	dir := filepath.Join(e.servers[1].Dir, ".rowkeeper", "pki")
	file := func(name string) string { return filepath.Join(dir, name) }
	authority, err := pki.ReadAuthority(file("ca.crt"), file("ca.key"))
	if err != nil {
		return nil, err
	}
	pair, err := authority.Issue(pki.Server("127.0.0.1", "localhost"), time.Now(), 5*24*time.Hour)
	if err != nil {
		return nil, err
	}
	certPEM, keyPEM, err := pair.PEM()
	if err != nil {
		return nil, err
	}
	oldCert, certErr := os.ReadFile(file("serving.crt"))
	oldKey, keyErr := os.ReadFile(file("serving.key"))
	write := func(certPEM, keyPEM []byte) error {
		return errors.Join(os.WriteFile(file("serving.key"), keyPEM, 0o600),
			os.WriteFile(file("serving.crt"), certPEM, 0o600))
	}
	if err := errors.Join(certErr, keyErr); err != nil {
		return nil, err
	}
	return func() error { return write(oldCert, oldKey) }, write(certPEM, keyPEM)
}

func diskFull(ctx context.Context, e *env) (func() error, error) {
	small := e.db.(*database.Small)
	empty, err := small.Fill()
	return func() error {
		if err := empty(); err != nil {
			return err
		}
		if p, ok := small.Database.(database.Process); ok {
			// It may have ended over it, or run on.
			if err := p.Start(ctx); err != nil && err.Error() != "start the database: the server "+
				"is running" {
				return err
			}
		}
		return nil
	}, err
}
