package scenario

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/database"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/jumpingclock"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/rows"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
)

func openPair(synchronous bool) func(context.Context, *Env) (database.Database, error) {
	return func(ctx context.Context, e *Env) (database.Database, error) {
		return database.NewPair(ctx, e.Dir, e.ways(), synchronous)
	}
}

// promoteBehind promotes a standby that lacks the newest commits. Writers wait while the primary's
// end is recorded, so that it is known what is lost; readers and watchers go on.
func promoteBehind(ctx context.Context, e *Env) error {
	pair := e.DB.(*database.Pair)
	if err := pair.Detach(ctx); err != nil {
		return err
	}
	e.Hold(ctx, time.Second, 3*time.Second)
	release := e.Load.HoldWrites()
	defer release()
	if err := e.Recorder.Sync(ctx); err != nil {
		return err
	}
	survived, err := pair.StandbyHead(ctx, e.store())
	if err != nil {
		return err
	}
	e.Say("%d revisions are lost", e.Recorder.Head()-survived)
	return e.promote(ctx, pair, survived, release)
}

// promoteSynchronous promotes a standby that has all that was acknowledged, at full load.
func promoteSynchronous(ctx context.Context, e *Env) error {
	return e.promote(ctx, e.DB.(*database.Pair), -1, func() {})
}

func (e *Env) promote(ctx context.Context, pair *database.Pair, survived int64,
	release func()) error {
	e.Recorder.Losing(survived)
	epochs := e.Recorder.Epochs()
	if err := e.Recorder.Swap(func() (*rows.DB, error) {
		if err := pair.KillPrimary(); err != nil {
			return nil, err
		}
		if err := pair.Promote(ctx); err != nil {
			return nil, err
		}
		old := e.Rows
		defer old.Close()
		promoted, err := rows.Open(pair.Direct(), e.prefix(), e.store())
		if err == nil {
			e.Rows = promoted
		}
		return promoted, err
	}); err != nil {
		return err
	}
	release()
	if err := e.awaitFence(ctx, epochs); err != nil {
		return err
	}
	return pair.Renew(ctx)
}

func openGalera(ctx context.Context, e *Env) (database.Database, error) {
	return database.NewGalera(ctx, e.Dir)
}

// loseNode cuts one node of the cluster off, kills it or freezes it. The cluster excludes it after
// five seconds, and nobody writes until then. The log is recorded at the first node, which is left
// alone. Before that, the clock of one of the nodes jumps.
func loseNode(ctx context.Context, e *Env) error {
	g := e.DB.(*database.Galera)
	how := []struct {
		name string
		lose func(context.Context, int) (end func() error, err error)
	}{{"cut off", g.Isolate}, {"dead", g.Crash}, {"frozen", g.Freeze}}[e.Rand.IntN(3)]
	if err := e.moveClock(ctx, e.Rand.IntN(3)); err != nil {
		return err
	}
	i := 1 + e.Rand.IntN(2)
	end, err := how.lose(ctx, i)
	if err != nil {
		return err
	}
	before, others := e.Load.Answered(i), e.Load.Total()
	e.Hold(ctx, 10*time.Second, 20*time.Second)
	own := e.Load.Answered(i) - before
	e.Note("server %d answered %d requests while its node was %s, and the others %d", i, own,
		how.name, e.Load.Total()-others-own)
	return end()
}

func openSmall(ctx context.Context, e *Env) (database.Database, error) {
	return database.NewSmall(ctx, e.Kind, e.ways(), e.Dir)
}

// diskFull fills the file system, and makes room again. A database that has ended over it is
// started again, which is all that an operator has to do.
func diskFull(ctx context.Context, e *Env) error {
	s := e.DB.(*database.Small)
	empty, err := s.Fill()
	if err != nil {
		return err
	}
	e.Hold(ctx, 5*time.Second, 20*time.Second)
	if err := empty(); err != nil {
		return err
	}
	if p, ok := s.Database.(database.Process); ok {
		if err := p.Start(ctx); err != nil && err.Error() != "start the database: the server is "+
			"running" {
			return err
		}
	}
	return nil
}

// jumpingReplica has the first server be one whose clock can be moved: this program itself.
func jumpingReplica(*Env) (path string, env []string, err error) {
	path, err = os.Executable()
	return path, nil, err
}

func openSkewed(ctx context.Context, e *Env) (database.Database, error) {
	return database.NewSkewed(ctx, e.Kind, e.ways(), dbserver.Options{})
}

// databaseClock moves the clock of the database.
func databaseClock(ctx context.Context, e *Env) error {
	if err := e.moveClock(ctx, 0); err != nil {
		return err
	}
	e.Hold(ctx, 2*time.Second, 5*time.Second)
	return nil
}

// moveClock moves the clock of a node of the database, and leaves it wrong.
func (e *Env) moveClock(ctx context.Context, node int) error {
	offset := e.clockOffset()
	e.Say("the clock of the database's node %d is wrong by %s", node, offset)
	if err := e.DB.(database.Clocked).SetClock(ctx, node, offset); err != nil {
		return err
	}
	db, err := rows.Open(e.DB.URL(node), "", "default")
	if err != nil {
		return err
	}
	defer db.Close()
	now, err := db.Clock(ctx)
	if off := time.Until(now) - offset; err == nil && off.Abs() > time.Minute {
		err = fmt.Errorf("the server's statements read a clock that is wrong by %s", off+offset)
	}
	return err
}

// clockOffset is by what a clock is wrong: by up to an hour in either direction. Every third time
// it is right.
func (e *Env) clockOffset() time.Duration {
	if e.Rand.IntN(3) == 0 {
		return 0
	}
	return time.Duration(e.Rand.IntN(7200)-3600) * time.Second
}

// clockJump moves the clock of the first server, and leaves it wrong.
func clockJump(ctx context.Context, e *Env) error {
	offset := e.clockOffset()
	e.Say("the clock of server 0 is wrong by %s", offset)
	s := e.Servers[0]
	if err := jumpingclock.SetOffset(s.Dir, offset); err != nil {
		return err
	}
	if err := s.Signal(syscall.SIGUSR1); err != nil {
		return err
	}
	e.Hold(ctx, 2*time.Second, 5*time.Second)
	return nil
}
