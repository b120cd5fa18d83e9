package clients

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rowkeeper/rowkeeper/hack/compat/internal/frontend"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// member is a server of PostgreSQL that a Patroni of its own keeps.
type member struct {
	*programs.Program
	t                  *testing.T
	name, api, address string
}

// settings are those of a Patroni. Its times are short: whoever leads has lost the lock after 20
// seconds, and bears an outage of etcd of five.
const settings = `
scope: test
name: %[1]s
restapi: {listen: "%[2]s", connect_address: "%[2]s"}
etcd3: {host: "%[4]s"}
bootstrap:
  dcs: {ttl: 20, loop_wait: 2, retry_timeout: 5, postgresql: {use_pg_rewind: true}}
  initdb: [{encoding: UTF8}, {locale: C}, no-sync]
postgresql:
  listen: "%[3]s"
  connect_address: "%[3]s"
  data_dir: %[5]s/data
  bin_dir: %[6]s
  pgpass: %[5]s/pgpass
  authentication:
    superuser: {username: postgres, password: letmein}
    replication: {username: replicator, password: letmein}
  pg_hba: ["host all all 127.0.0.1/32 scram-sha-256", "host replication all 127.0.0.1/32 scram-sha-256"]
  parameters: {unix_socket_directories: "", fsync: "off"}
`

func startMember(t *testing.T, name, etcd, bin string) *member {
	t.Helper()
	dir, err := os.MkdirTemp("", "patroni-") //nolint:usetesting // another user reads it
	if err != nil {
		t.Fatal(err)
	}
	m := &member{t: t, name: name, api: frontend.Address(t), address: frontend.Address(t),
		Program: &programs.Program{Dir: dir, Signal: syscall.SIGTERM}}
	err = m.RunAs("postgres")
	if err == nil {
		_, err = m.Write("patroni.yml", fmt.Appendf(nil, settings, name, m.api, m.address, etcd, dir, bin))
	}
	if err != nil {
		t.Fatal(err)
	}
	m.Command = []string{"patroni", filepath.Join(dir, "patroni.yml")}
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the Patroni of %s: %s", name, m.Log())
		}
		if err := errors.Join(m.Stop(context.WithoutCancel(t.Context())), m.killPostgres(),
			os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return m
}

// killPostgres kills the server of PostgreSQL, which does not end with its Patroni.
func (m *member) killPostgres() error {
	content, err := os.ReadFile(filepath.Join(m.Dir, "data", "postmaster.pid"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	first, _, _ := strings.Cut(string(content), "\n")
	pid, bad := strconv.Atoi(first)
	if err = errors.Join(err, bad); err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// state is what a Patroni says of a member.
type state struct {
	Name, Role, State string
	Timeline          int
}

// cluster asks a Patroni for all members.
func (m *member) cluster(ctx context.Context) (members []state, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.api+"/cluster", nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var all struct{ Members []state }
	return all.Members, json.NewDecoder(answer.Body).Decode(&all)
}

// await waits until a Patroni says that one member leads and the others follow, on the timeline, or
// on any if it is 0. It returns the leader's timeline.
func (m *member) await(leader string, members, timeline int) (on int) {
	m.t.Helper()
	if err := m.Await(m.t.Context(), func(ctx context.Context) error {
		all, err := m.cluster(ctx)
		good := err == nil && len(all) == members
		for _, one := range all {
			leads := one.Role == "leader"
			good = good && leads == (one.Name == leader) &&
				(one.State == "running" || one.State == "streaming") &&
				(timeline == 0 || one.Timeline == timeline)
			if leads {
				on = one.Timeline
			}
		}
		if !good {
			return fmt.Errorf("%+v %w", all, err)
		}
		return nil
	}); err != nil {
		m.t.Fatal(err)
	}
	return on
}

// query runs SQL at the member's server until it succeeds and gives the wanted value, if any is.
func (m *member) query(sql, want string) {
	m.t.Helper()
	if err := m.Await(m.t.Context(), func(ctx context.Context) error {
		c, err := pgx.Connect(ctx, "postgres://postgres:letmein@"+m.address+"/postgres")
		if err != nil {
			return err
		}
		defer c.Close(ctx)
		if want == "" {
			_, err = c.Exec(ctx, sql)
			return err
		}
		var got string
		if err := c.QueryRow(ctx, sql).Scan(&got); err != nil || got != want {
			return fmt.Errorf("%s: %q, not %q: %w", sql, got, want, err)
		}
		return nil
	}); err != nil {
		m.t.Fatal(err)
	}
}

// lines counts the lines of its log that have a text.
func (m *member) lines(text string) int {
	content, err := os.ReadFile(filepath.Join(m.Dir, "log"))
	if err != nil {
		m.t.Fatal(err)
	}
	return strings.Count(string(content), text)
}

// awaitLine waits until the log has more lines with a text than before.
func (m *member) awaitLine(text string, before int) {
	m.t.Helper()
	if err := m.Await(m.t.Context(), func(context.Context) error {
		if m.lines(text) > before {
			return nil
		}
		return fmt.Errorf("its log does not say %q", text)
	}); err != nil {
		m.t.Fatal(err)
	}
}

// TestPatroni: a cluster begins, gets a replica, switches over when it is told so, and fails over
// when its leader is killed. A front end that is killed, and is back after some seconds, makes it
// do nothing.
func TestPatroni(t *testing.T) {
	need(t, "patroni", "patroni", "--version")
	bin, err := programs.FindPostgres()
	if err != nil {
		t.Skip(err)
	}
	f := frontend.Start(t)
	a := startMember(t, "a", f.Address, bin)
	a.await("a", 1, 0)
	a.query("CREATE TABLE t (v text)", "")
	b := startMember(t, "b", f.Address, bin)
	first := b.await("a", 2, 0)
	a.query("INSERT INTO t VALUES ('a')", "")
	b.query("SELECT string_agg(v, '') FROM t", "a")

	// The front end is gone for as long as a Patroni takes to see that.
	const follows, leads = "no action. I am (b), a secondary", "no action. I am (a), the leader"
	missed := a.lines("ERROR")
	if err := f.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.awaitLine("ERROR", missed)
	led, followed := a.lines(leads), b.lines(follows)
	f.StartAgain()
	a.awaitLine(leads, led)
	b.awaitLine(follows, followed)
	a.await("a", 2, first)
	a.query("INSERT INTO t VALUES ('b')", "")

	answer, err := http.Post("http://"+a.api+"/switchover", "application/json",
		strings.NewReader(`{"leader":"a","candidate":"b"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if said, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
		t.Fatalf("the switchover: %s %s", answer.Status, said)
	}
	if second := a.await("b", 2, first+1); second <= first {
		t.Errorf("the timeline is %d", second)
	}
	b.query("INSERT INTO t VALUES ('c')", "")
	a.query("SELECT string_agg(v, '') FROM t", "abc")

	began := time.Now()
	if err := errors.Join(b.Kill(t.Context()), b.killPostgres()); err != nil {
		t.Fatal(err)
	}
	a.query("INSERT INTO t VALUES ('d')", "")
	t.Logf("failed over in %s", time.Since(began).Round(time.Second))
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	a.await("a", 2, first+2)
	b.query("SELECT string_agg(v, '') FROM t", "abcd")
}
