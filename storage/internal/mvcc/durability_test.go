package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

func TestDurability(t *testing.T) {
	for _, test := range []struct {
		name string
		d    contract.Durability
		lost bool
		risk string
	}{
		{"strict for ever", contract.Durability{Boot: "2"}, false, ""},
		{"relaxed for the first time", contract.Durability{Boot: "2", Relaxed: true}, false, "2"},
		{"relaxed, the same boot", contract.Durability{Boot: "2", Relaxed: true, Recorded: "2"},
			false, "2"},
		{"relaxed, another boot", contract.Durability{Boot: "2", Relaxed: true, Recorded: "1"},
			true, "2"},
		{"strict since, the same boot", contract.Durability{Boot: "2", Recorded: "2"}, false, "2"},
		{"strict since, another boot", contract.Durability{Boot: "2", Recorded: "1"}, true, ""},
		{"nobody can tell", contract.Durability{Relaxed: true}, false, ""},
		{"nobody can tell any more", contract.Durability{Recorded: "1"}, true, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if lost := test.d.Lost(); lost != test.lost {
				t.Errorf("lost: %t", lost)
			}
			if risk := test.d.AtRisk(); risk != test.risk {
				t.Errorf("at risk: %q, want %q", risk, test.risk)
			}
			if settled := test.d.Settled(); settled != (test.d.Recorded == test.risk) {
				t.Errorf("settled: %t", settled)
			}
		})
	}
}

// machine is a database whose machine can lose its power.
type machine struct {
	db dbtest.DB
	// relax and tighten change the settings, restart begins another boot.
	relax, tighten, restart func()
	// boot, if not nil, names the boot in place of the machine that the test runs on.
	boot func() string
}

// booted is a backend whose machine says which boot it is.
type booted struct {
	contract.Backend
	boot func() string
}

func (b booted) Durability(ctx context.Context) (contract.Durability, error) {
	d, err := b.Backend.Durability(ctx)
	d.Boot = b.boot()
	return d, err
}

func newMachine(t *testing.T, kind dbtest.Kind) *machine {
	if kind == dbtest.SQLite {
		m := &machine{db: dbtest.Open(t, kind)}
		boot, strict := "first", m.db.URL
		m.boot = func() string { return boot }
		m.relax = func() { m.db.URL = strict + "?synchronous=NORMAL" }
		m.tighten = func() { m.db.URL = strict }
		m.restart = func() { boot += ", next" }
		return m
	}
	const flush = "innodb_flush_log_at_trx_commit"
	var options dbserver.Options
	if kind != dbtest.Postgres {
		// It starts with relaxed settings, so that a store which is open meanwhile never finds it
		// strict.
		options.Settings = map[string]string{flush: "2"}
	}
	s := dbtest.NewServer(t, kind, options)
	m := &machine{db: s.Open(), restart: func() { s.Kill(); s.Start() }}
	if kind == dbtest.Postgres {
		m.relax = func() { s.Exec("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()") }
		m.tighten = func() { s.Exec("ALTER SYSTEM RESET fsync", "SELECT pg_reload_conf()") }
		return m
	}
	value := ""
	set := func(v string) { value = v; s.Exec("SET GLOBAL " + flush + " = " + v) }
	set("1")
	m.relax = func() { set("2") }
	m.tighten = func() { set("1") }
	started := time.Now()
	m.restart = func() {
		s.Kill()
		// These servers tell the second in which they started.
		err := mvcc.Poll(t.Context(), func() bool { return time.Now().Unix() > started.Unix() })
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		started = time.Now()
		set(value)
	}
	return m
}

// open opens a store on the machine.
func (m *machine) open(t *testing.T) *mvcc.Engine {
	t.Helper()
	opts := contract.DriverOptions{Logger: testLogger(t), Timeout: 30e9}
	if _, err := m.db.Driver.Migrate(t.Context(), m.db.URL, opts); err != nil {
		t.Fatal(err)
	}
	b, err := contract.OpenBackend(t.Context(), m.db.Driver, m.db.URL, opts)
	if err != nil {
		t.Fatal(err)
	}
	if m.boot != nil {
		b = booted{b, m.boot}
	}
	s, err := mvcc.Open(t.Context(), b, mvcc.Config{Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// isFenced tells whether a store has begun a new history after the revision.
func isFenced(t *testing.T, s *mvcc.Engine, seen contract.Revision) bool {
	t.Helper()
	_, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: seen})
	if err != nil && !errors.Is(err, contract.ErrCompacted) {
		t.Fatal(err)
	}
	if head := s.Delivered(); err != nil && head < seen+contract.JumpBefore(1)/2 {
		t.Errorf("the head is %d after a fence, %d was seen before", head, seen)
	}
	return err != nil
}

// TestPowerFailure takes the power from a database and all its servers. Writes that were confirmed
// with relaxed settings and are not on the disk are gone, and nobody is left who has seen them.
func TestPowerFailure(t *testing.T) {
	for _, kind := range dbtest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			m := newMachine(t, kind)
			s := m.open(t)
			seen := put(t, s, "/strict", 0, "v")
			s.Close()

			m.restart()
			if s = m.open(t); isFenced(t, s, seen) {
				t.Error("a restart of the machine is a fence, though the settings are strict")
			}
			s.Close()

			m.relax()
			s = m.open(t)
			put(t, s, "/kept", 0, "v")
			d := raw(t, m.db)
			dump(t, d)
			for range 5 {
				seen = put(t, s, contract.Key("/lost"+strings.Repeat("x", int(seen))), 0, "v")
			}
			s.Close()
			if s = m.open(t); isFenced(t, s, seen) {
				t.Error("a restart of the process is a fence")
			}
			s.Close()
			restore(t, d)
			d.Close()
			m.restart()
			if s = m.open(t); !isFenced(t, s, seen) {
				t.Errorf("the database has lost its tail, and goes on at %d after %d was given",
					s.Delivered(), seen)
			}
			seen = put(t, s, "/after", 0, "v")
			s.Close()

			// The settings are strict when the process starts again, but were not when the commit
			// was made.
			m.restart()
			m.tighten()
			if s = m.open(t); !isFenced(t, s, seen) {
				t.Error("the settings of now count, not those of the commits")
			}
			seen = put(t, s, "/strict again", 0, "v")
			s.Close()
			m.restart()
			if s = m.open(t); isFenced(t, s, seen) {
				t.Error("the fence has not taken the record away")
			}
		})
	}
}

// TestRestartUnderServers restarts a server with relaxed settings under a running process: another
// one, which has seen more, may have ended with it.
func TestRestartUnderServers(t *testing.T) {
	for _, kind := range dbtest.Servers() {
		t.Run(string(kind), func(t *testing.T) {
			m := newMachine(t, kind)
			s := m.open(t)
			put(t, s, "/strict", 0, "v")
			m.relax()
			m.restart()
			// The boot is recorded by the first new connection, and nothing is lost. A write that
			// meets the restart may have an unknown outcome.
			seen, err := contract.Revision(0), contract.ErrUnknownOutcome
			for n := 0; errors.Is(err, contract.ErrUnknownOutcome); n++ {
				key := contract.Key(fmt.Sprintf("/recorded/%d", n))
				seen, err = s.Commit(t.Context(), contract.Mutation{Key: key, Value: []byte("v")})
			}
			if err != nil {
				t.Fatal(err)
			}
			if isFenced(t, s, seen) {
				t.Error("to record the boot is a fence")
			}
			m.restart()
			eventuallyFenced(t, s, seen)
			put(t, s, "/after", 0, "v")
		})
	}
}

// eventuallyFenced waits for the end of a watch.
func eventuallyFenced(t *testing.T, s *mvcc.Engine, seen contract.Revision) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for !isFenced(t, s, seen) {
		w, err := s.Watch(ctx, mvcc.WatchOptions{Prefix: "/", After: seen})
		if ctx.Err() != nil {
			t.Fatal("the loss is not noticed")
		}
		if err != nil {
			continue
		}
		if _, err := w.Next(ctx); err == nil {
			t.Error("an event comes without a write")
			return
		}
	}
}
