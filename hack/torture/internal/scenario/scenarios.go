package scenario

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/database"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/front"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/rows"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

const sigkill = syscall.SIGKILL

// Scenario is a fault, or several, and where it can happen.
type Scenario struct {
	Name string
	// About is one sentence.
	About string
	// Kinds are the databases that it works for.
	Kinds []programs.Kind
	// Fault injects a fault and takes it away again. Whether the servers recover is looked at
	// afterwards.
	Fault func(ctx context.Context, e *Env) error
	// Loses: history is lost or replaced, so that it begins anew.
	Loses bool
	// Open starts a database of the scenario's own.
	Open func(ctx context.Context, e *Env) (database.Database, error)
	// Program is another program for the first server, and its environment.
	Program func(e *Env) (path string, env []string, err error)
	// Args are further flags of the servers, and Env is more of their environment.
	Args, Env []string
	// Alone: the fault is not one of those of the random scenario, since it needs a database or
	// servers of its own.
	Alone bool
	// API: the fault asks an API server for something. Own: it judges the answers of Rowkeeper's
	// own one; those of upstream's storage without its database are upstream's.
	API, Own bool
	// Front: the fault is one of a "rowkeeper etcd" that a server stores in.
	Front bool
	// EtcdClients: the fault is one for clients of etcd's API, without an API server.
	EtcdClients bool
	// Filed: the servers read their URLs from files.
	Filed bool
	// Server: the fault is one of the whole database server, which has to be one of the run's own.
	Server bool
	// Short and Long are how many faults there are in a run; 0 means the default.
	Short, Long int

	of []*Scenario
}

var (
	all     = programs.Kinds()
	primary = []programs.Kind{programs.Postgres}
	network = []programs.Kind{programs.Postgres, programs.MariaDB, programs.MySQL}
	mysqls  = []programs.Kind{programs.MariaDB, programs.MySQL}
)

// Scenarios are all scenarios.
func Scenarios() []*Scenario {
	scenarios := []*Scenario{
		{Name: "steady", About: "no fault: three servers, compaction at full speed", Kinds: all,
			Alone: true},
		{Name: "server-kill", About: "a server is killed (SIGKILL) and started again", Kinds: all,
			Fault: serverKill},
		{Name: "server-restart", About: "a server is told to stop (SIGTERM) and started again",
			Kinds: all, Fault: serverRestart},
		{Name: "rolling-restart", About: "all servers are restarted in order, one after the other",
			Kinds: all, Fault: rollingRestart},
		{Name: "front-kill", About: "the \"rowkeeper etcd\" that a server stores in is killed " +
			"(SIGKILL) and started again; the server goes on", Kinds: all, Fault: frontKill,
			Front: true, Alone: true, Short: 5},
		{Name: "server-pause", About: "a server is frozen (SIGSTOP) for longer than every timeout",
			Kinds: all, Fault: serverPause, Long: 5},
		{Name: "head-lock",
			About: "somebody else locks the head row (SQLite: the database) for 30 s", Kinds: all,
			Fault: headLock, Long: 5},
		{Name: "read-lock", About: "a backup holds the global read lock (FLUSH TABLES WITH READ " +
			"LOCK) for a while", Kinds: mysqls, Fault: readLock, Server: true},
		{Name: "connections-reset", About: "all connections to the database are ended by its " +
			"administrator", Kinds: network, Fault: connectionsReset},
		{Name: "database-kill", About: "the database is killed (SIGKILL) and started again",
			Kinds: network, Fault: databaseKill, Server: true},
		{Name: "database-restart", About: "the database is stopped in order and started again",
			Kinds: network, Fault: databaseRestart, Server: true},
		{Name: "database-pause", About: "the database is frozen for longer than every timeout",
			Kinds: network, Fault: databasePause, Server: true, Long: 5},
		{Name: "network-cut", About: "the network between one server and the database is cut",
			Kinds: network, Fault: networkCut},
		{Name: "network-slow", About: "the network between one server and the database is slow",
			Kinds: network, Fault: networkSlow},
		{Name: "network-half-open", About: "the network between one server and the database " +
			"takes one direction's bytes and drops them", Kinds: network, Fault: networkHalfOpen,
			Long: 10},
		{Name: "newer-schema", About: "the schema is brought further, as the next release does, " +
			"while servers run and restart", Kinds: all, Fault: newerSchema},
		{Name: "index-rebuilt", About: "an index is built anew under load", API: true, Own: true,
			Kinds: all, Fault: indexRebuilt},
		{Name: "restore", About: "an older dump is restored under running servers", Kinds: all,
			Fault: restore, Loses: true, Alone: true, Long: 10},
		{Name: "drill", About: "a copy that a drill has fenced twice takes the place of the " +
			"database of running servers", Kinds: all, Fault: drillUnderServers, Loses: true,
			Alone: true, Long: 5},
		{Name: "drill-stopped", About: "a copy that a drill has fenced twice takes the place of " +
			"the database while no server runs", Kinds: all, Fault: drillWhileStopped, Loses: true,
			Alone: true, Long: 5},
		{Name: "power-failure", About: "all servers and a database with relaxed durability lose " +
			"their power, and the newest commits", Kinds: all, Open: openRelaxed,
			Fault: powerFailure, Loses: true, Alone: true, Long: 10},
		{Name: "database-power-failure", About: "a database with relaxed durability loses its " +
			"power, and the newest commits; the servers do not", Kinds: network, Open: openRelaxed,
			Fault: databasePowerFailure, Loses: true, Alone: true, Long: 10},
		{Name: "standby-behind", About: "a standby without the newest commits is promoted",
			Kinds: primary, Open: openPair(false), Fault: promoteBehind, Loses: true,
			Alone: true, Long: 5},
		{Name: "standby-synchronous", About: "a synchronous standby is promoted at full load: " +
			"nothing is lost", Kinds: primary, Open: openPair(true), Fault: promoteSynchronous,
			Loses: true, Alone: true, Long: 5},
		{Name: "galera", About: "a Galera cluster of three nodes with a server on each, one node " +
			"cut off, killed or frozen, and clocks that jump",
			Kinds: []programs.Kind{programs.MariaDB}, Open: openGalera, Fault: loseNode,
			Alone: true, Long: 10},
		{Name: "database-away", About: "the database is stopped for a while: requests fail in " +
			"time, servers stay alive and are not ready", API: true, Own: true, Kinds: network,
			Fault: databaseAway, Server: true, Alone: true, Short: 1, Long: 3},
		{Name: "stuck-watchers", About: "300 watches and lists at one server are never read",
			API: true, Kinds: all, Fault: stuckWatchers, Alone: true, Short: 1, Long: 1},
		{Name: "many-watchers", About: "10,000 watches at one server (1,000 in the short form)",
			API: true, Kinds: all, Fault: manyWatchers, Alone: true, Short: 1, Long: 1},
		{Name: "hopping-watchers", About: "300 watches (90 in the short form) are broken off and " +
			"resumed all the time; writers pause again and again, and each watch has the last event",
			Kinds: all, Fault: hoppingWatchers, Alone: true, Short: 1, Long: 1},
		{Name: "burst", About: "a burst of 100,000 writes (5,000 in the short form)",
			API: true, Kinds: all, Fault: burst, Alone: true, Short: 1, Long: 1},
		{Name: "big-list", About: "a list of 1,000,000 objects (5,000 in the short form), " +
			"without a watch cache for them", API: true, Kinds: all, Fault: bigList, Alone: true,
			Short: 1, Long: 1,
			// Such a list takes longer than three seconds in pages, and longer than other requests
			// may take at once.
			Args: []string{"--watch-cache-sizes=pipelineruns.ci.rowkeeper.dev#0",
				"--storage-count-interval=0", "--compaction-window=10m", "--request-timeout=10m"}},
		{Name: "flood", About: "1,000 objects of 1 MiB (640 in the short form) expire at once, " +
			"without a watch cache for them", API: true, Kinds: all, Fault: flood, Alone: true,
			Short: 1, Long: 1, Env: []string{"GOGC=50"},
			Args: []string{"--watch-cache-sizes=pipelineruns.ci.rowkeeper.dev#0",
				"--storage-count-interval=0"}},
		{Name: "clock-jumps",
			About: "the clock of one server jumps, by up to an hour, again and again",
			Kinds: []programs.Kind{programs.SQLite}, Program: jumpingReplica, Fault: clockJump,
			Alone: true, Short: 4},
		{Name: "database-clock", About: "the clock of the database jumps, by up to an hour, again " +
			"and again", Kinds: network, Open: openSkewed, Fault: databaseClock, Alone: true,
			Short: 4},
		{Name: "log-removed", About: "the write-ahead log is removed under running servers, which " +
			"then are restarted", Kinds: []programs.Kind{programs.SQLite}, Fault: logRemoved,
			Loses: true, Alone: true, Short: 1, Long: 10},
		{Name: "writes-refused", About: "the database refuses writes for a while: a full file " +
			"system (SQLite), no transaction numbers left (PostgreSQL), read_only (MySQL, MariaDB)",
			API: true, Own: true, Kinds: all, Open: openRefusing, Fault: writesRefused,
			Alone: true, Short: 1, Long: 1},
		{Name: "password-rotated", About: "the password is changed in the database and in the " +
			"servers' --database-file, and connections end", Kinds: network, Open: openRotating,
			Fault: passwordRotated, Filed: true, Alone: true, Long: 5},
		{Name: "leases", About: "1,000 leases (20,000 in the long form) lapse at several " +
			"\"rowkeeper etcd\", which are killed meanwhile", Kinds: all, Fault: lapsingLeases,
			EtcdClients: true, Alone: true, Short: 1, Long: 3},
		{Name: "disk-full", About: "the file system of the database is full for a while",
			Kinds: []programs.Kind{programs.SQLite, programs.Postgres}, Open: openSmall,
			Fault: diskFull, Alone: true, Long: 5},
	}
	random := &Scenario{Name: "random", About: "faults of all kinds, in random order", Kinds: all,
		Fault: serverKill, Short: 5, Long: 50}
	for _, s := range scenarios {
		if !s.Alone {
			random.of = append(random.of, s)
		}
	}
	return append(scenarios, random)
}

// Find returns the scenario of a name, nil if there is none.
func Find(name string) *Scenario {
	scenarios := Scenarios()
	i := slices.IndexFunc(scenarios, func(s *Scenario) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return scenarios[i]
}

// Fits tells whether the scenario can be run with servers that store by etcd's API, with clients
// that use it themselves, or without it. The flags and the program of what uses etcd's API are its
// own. A database that somebody gives is not one that a scenario opens for itself, and its server
// is left alone.
func (s *Scenario) Fits(etcd, etcdClients, given bool) bool {
	switch {
	case given && (s.Open != nil || s.Server):
		return false
	case etcdClients:
		return s.Program == nil && len(s.Args) == 0 && !s.Front && !s.API
	case etcd:
		return s.Program == nil && len(s.Args) == 0 && !s.Own && !s.Filed && !s.EtcdClients
	}
	return !s.Front
}

// For returns the scenario as it is for a kind of database: a random one has the faults that this
// kind can have.
func (s *Scenario) For(kind programs.Kind) *Scenario {
	out := *s
	out.of = nil
	for _, o := range s.of {
		if slices.Contains(o.Kinds, kind) {
			out.of = append(out.of, o)
		}
	}
	return &out
}

// FaultCount is how many faults a run has.
func (s *Scenario) FaultCount(long bool) int {
	switch {
	case s.Fault == nil:
		return 0
	case long && s.Long > 0:
		return s.Long
	case long:
		return 20
	case s.Short > 0:
		return s.Short
	}
	return 2
}

// OperationCount is how many requests a run has to have answered.
func (s *Scenario) OperationCount(long bool) int {
	switch {
	case long && len(s.of) > 0:
		return 100_000
	case long:
		return 20_000
	}
	return 4000
}

func (e *Env) victim() int { return e.Rand.IntN(len(e.Servers)) }

func serverKill(ctx context.Context, e *Env) error {
	i := e.victim()
	if _, err := e.Servers[i].End(ctx, syscall.SIGKILL); err != nil {
		return err
	}
	e.Hold(ctx, 200*time.Millisecond, time.Second)
	return e.restart(ctx, i)
}

func frontKill(_ context.Context, e *Env) error { return front.Kill(e.Servers[e.victim()].Dir) }

func (e *Env) restart(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, recoverWithin)
	defer cancel()
	return e.Servers[i].Restart(ctx, e.ready(i))
}

func serverRestart(ctx context.Context, e *Env) error { return e.terminate(ctx, e.victim()) }

func (e *Env) terminate(ctx context.Context, i int) error {
	ending, cancel := context.WithTimeout(ctx, recoverWithin)
	defer cancel()
	code, err := e.Servers[i].End(ending, syscall.SIGTERM)
	if err != nil {
		return err
	}
	if code != 0 {
		e.Fail("restart", "server %d exited with %d after SIGTERM: %s", i, code, e.Servers[i].Log())
	}
	return e.restart(ctx, i)
}

func rollingRestart(ctx context.Context, e *Env) error {
	for i := range e.Servers {
		if err := e.terminate(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func serverPause(ctx context.Context, e *Env) error {
	i := e.victim()
	if err := e.Servers[i].Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	e.Hold(ctx, 6*time.Second, 45*time.Second)
	return e.Servers[i].Signal(syscall.SIGCONT)
}

func headLock(ctx context.Context, e *Env) error {
	unlock, err := e.Rows.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	e.Hold(ctx, 5*time.Second, 30*time.Second)
	return nil
}

// readLock takes the lock while all servers write. Neither it nor the writes may wait for a lock
// wait timeout; the note says how long the lock took.
func readLock(ctx context.Context, e *Env) error {
	began := time.Now()
	unlock, err := e.Rows.ReadLock(ctx)
	if err != nil {
		return err
	}
	e.Note("the global read lock was taken within %.2f s", time.Since(began).Seconds())
	e.Hold(ctx, 200*time.Millisecond, 6*time.Second)
	return unlock()
}

func connectionsReset(ctx context.Context, e *Env) error { return e.Rows.EndOthers(ctx) }

func (e *Env) process() database.Process { return e.DB.(database.Process) }

func databaseKill(ctx context.Context, e *Env) error {
	if err := e.process().Kill(ctx); err != nil {
		return err
	}
	e.Hold(ctx, 500*time.Millisecond, 3*time.Second)
	return e.process().Start(ctx)
}

func databaseRestart(ctx context.Context, e *Env) error {
	if err := e.process().Stop(ctx); err != nil {
		return err
	}
	e.Hold(ctx, 200*time.Millisecond, time.Second)
	return e.process().Start(ctx)
}

func databasePause(ctx context.Context, e *Env) error {
	if err := e.process().Pause(ctx); err != nil {
		return err
	}
	e.Hold(ctx, 6*time.Second, 45*time.Second)
	return e.process().Resume(ctx)
}

func networkCut(ctx context.Context, e *Env) error {
	i := e.victim()
	e.DB.Network().Cut(i)
	e.Hold(ctx, 3*time.Second, 15*time.Second)
	return e.DB.Network().Heal(ctx, i)
}

func networkSlow(ctx context.Context, e *Env) error {
	i := e.victim()
	for _, upstream := range []bool{true, false} {
		if err := e.DB.Network().Add(i, "latency", upstream,
			`{"latency":150,"jitter":100}`); err != nil {
			return err
		}
		if err := e.DB.Network().Add(i, "bandwidth", upstream, `{"rate":64}`); err != nil {
			return err
		}
	}
	e.Hold(ctx, 5*time.Second, 20*time.Second)
	return e.DB.Network().Heal(ctx, i)
}

func networkHalfOpen(ctx context.Context, e *Env) error {
	i := e.victim()
	if err := e.DB.Network().Add(i, "timeout", e.Rand.IntN(2) == 0, `{"timeout":0}`); err != nil {
		return err
	}
	e.Hold(ctx, 6*time.Second, 40*time.Second)
	return e.DB.Network().Heal(ctx, i)
}

func newerSchema(ctx context.Context, e *Env) error {
	if err := e.Rows.Expand(ctx); err != nil {
		return err
	}
	return e.terminate(ctx, e.victim())
}

// restore takes a dump, lets the load go on, and puts the dump in the place of what is there.
// Writers wait for the moment between the last record of the log and the restore, so that it is
// known what is lost; readers and watchers go on.
func restore(ctx context.Context, e *Env) error {
	dump, err := e.Rows.Dump(ctx, e.Dir)
	if err != nil {
		return err
	}
	e.Hold(ctx, time.Second, 3*time.Second)
	release := e.Load.HoldWrites()
	defer release()
	epochs := e.Recorder.Epochs()
	if err := e.swap(ctx, dump, nothing); err != nil {
		return err
	}
	release()
	return e.awaitFence(ctx, epochs)
}

// swap puts a dump in the place of what is there, while nobody writes, and then does what else
// belongs to it. The recorder sees the end of it only.
func (e *Env) swap(ctx context.Context, dump *rows.Dump, then func() error) error {
	if err := e.Recorder.Sync(ctx); err != nil {
		return err
	}
	e.Say("what was written after %d is lost, up to %d", dump.Head, e.Recorder.Head())
	e.Recorder.Losing(dump.Head)
	return e.Recorder.Swap(func() (*rows.DB, error) {
		restored, err := e.Rows.Restore(ctx, dump)
		if err == nil {
			e.Rows = restored
			err = then()
		}
		return restored, err
	})
}

func nothing() error { return nil }

func drillUnderServers(ctx context.Context, e *Env) error {
	dump, err := e.drill(ctx)
	if err != nil {
		return err
	}
	release := e.Load.HoldWrites()
	defer release()
	epochs := e.Recorder.Epochs()
	if err := e.swap(ctx, dump, nothing); err != nil {
		return err
	}
	release()
	return e.awaitFence(ctx, epochs)
}

// drillWhileStopped: another file is noticed, other rows in the same tables are not.
func drillWhileStopped(ctx context.Context, e *Env) error {
	dump, err := e.drill(ctx)
	if err != nil {
		return err
	}
	release := e.Load.HoldWrites()
	defer release()
	epochs := e.Recorder.Epochs()
	ending, cancel := context.WithTimeout(ctx, recoverWithin)
	defer cancel()
	for i := range e.Servers {
		if _, err := e.Servers[i].End(ending, syscall.SIGTERM); err != nil {
			return err
		}
	}
	e.History.FencedUnseen = true
	err = e.swap(ctx, dump, func() error {
		if e.Kind == programs.SQLite {
			return nil
		}
		// Nobody has used the copy's history before the fence.
		return e.fence(ctx, e.DB.Direct(), e.store())
	})
	if err != nil {
		return err
	}
	for i := range e.Servers {
		if err := e.restart(ctx, i); err != nil {
			return err
		}
	}
	release()
	return e.awaitFence(ctx, epochs)
}

// drill takes a dump, lets a drill fence it twice, and then has the database fenced by hand: so the
// dump has a higher epoch and lower revisions.
func (e *Env) drill(ctx context.Context) (*rows.Dump, error) {
	dump, err := e.Rows.Dump(ctx, e.Dir)
	if err != nil {
		return nil, err
	}
	last, err := e.Rows.Drill(ctx, dump, func(url string) error {
		// The copy that SQLite makes is not in WAL mode.
		if err := e.rowkeeper(ctx, "migrate", "up", "--database="+url); err != nil {
			return err
		}
		return e.fence(ctx, url, "default")
	})
	if err != nil {
		return nil, err
	}
	// The database's own fence is to be far beyond the drill's. Fences move on by the clock, 2^22
	// revisions a second. Each is four seconds beyond the one before, and so ahead of the clock if
	// that was made a moment ago.
	Wait(ctx, time.Until(time.Unix(last>>22+3, 0)))
	epochs := e.Recorder.Epochs()
	if err := e.fence(ctx, e.DB.Direct(), e.store()); err != nil {
		return nil, err
	}
	if err := e.awaitFence(ctx, epochs); err != nil {
		return nil, err
	}
	e.awaitServers(ctx)
	e.Hold(ctx, time.Second, 3*time.Second)
	return dump, nil
}

func (e *Env) fence(ctx context.Context, url, store string) error {
	return e.rowkeeper(ctx, "fence", "--database="+url, "--store="+store)
}

// rowkeeper runs a command of the program.
func (e *Env) rowkeeper(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, e.Config.Rowkeeper, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("rowkeeper %s: %w: %s", args[0], err, out)
	}
	return nil
}

// awaitFence waits until the servers have noticed that history was lost.
func (e *Env) awaitFence(ctx context.Context, epochs int) error {
	err := until(ctx, recoverWithin, func(context.Context) error {
		if e.Recorder.Epochs() == epochs {
			return errFence
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		e.Fail("fence", "history was lost, and no server noticed: %v", err)
		return nil
	}
	return err
}
