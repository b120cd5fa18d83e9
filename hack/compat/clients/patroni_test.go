package clients

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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

// awaitSync waits until a Patroni says that a member follows synchronously: no other one may lead
// if the leader is gone.
func (m *member) awaitSync(name string) {
	m.t.Helper()
	if err := m.Await(m.t.Context(), func(ctx context.Context) error {
		all, err := m.cluster(ctx)
		for _, one := range all {
			if one.Name == name && one.Role == "sync_standby" {
				return nil
			}
		}
		return fmt.Errorf("%+v %w", all, err)
	}); err != nil {
		m.t.Fatal(err)
	}
}

// ask asks a Patroni to do something.
func (m *member) ask(method, path, body string) {
	m.t.Helper()
	if _, err := request(m.t.Context(), method, "http://"+m.api+path, body); err != nil {
		m.t.Fatal(err)
	}
}

func request(ctx context.Context, method, url, body string) (said string, err error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s %s", method, url, answer.Status, content)
	}
	return string(content), err
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

	a.ask(http.MethodPost, "/switchover", `{"leader":"a","candidate":"b"}`)
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

// TestServersUnderPatroni: a server whose URL names all members of a cluster that replicates
// synchronously goes on after a switchover and after a failover. Nothing that it confirmed is lost,
// and each promotion fences the history once.
func TestServersUnderPatroni(t *testing.T) {
	need(t, "patroni", "patroni", "--version")
	bin, err := programs.FindPostgres()
	if err != nil {
		t.Skip(err)
	}
	etcd := frontend.Start(t).Address
	a := startMember(t, "a", etcd, bin)
	a.await("a", 1, 0)
	b := startMember(t, "b", etcd, bin)
	first := b.await("a", 2, 0)
	a.ask(http.MethodPatch, "/config", `{"synchronous_mode": true}`)
	a.query("CREATE ROLE rowkeeper LOGIN PASSWORD 'letmein'", "")
	a.query("CREATE DATABASE rowkeeper OWNER rowkeeper", "")
	a.awaitSync("b")

	s := frontend.StartOn(t, "postgres://rowkeeper:letmein@"+a.address+","+b.address+
		"/rowkeeper?sslmode=disable")
	ctx, stop := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	var last atomic.Int64 // a key that was confirmed
	var confirmed []string
	writer.Go(func() {
		for i := int64(1); ctx.Err() == nil; i++ {
			key := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "k%08d", i))
			if _, err := request(ctx, http.MethodPost, "http://"+s.Address+"/v3/kv/put",
				`{"key": "`+key+`", "value": "dg=="}`); err == nil {
				confirmed = append(confirmed, key)
				last.Store(i)
			}
		}
	})
	defer writer.Wait()
	defer stop()
	goesOn := func() {
		t.Helper()
		before := last.Load()
		if err := s.Await(t.Context(), func(context.Context) error {
			if n := last.Load(); n < before+20 {
				return fmt.Errorf("key %d was confirmed last", n)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	goesOn()
	a.ask(http.MethodPost, "/switchover", `{"leader":"a","candidate":"b"}`)
	a.await("b", 2, first+1)
	goesOn()
	b.awaitSync("a")
	goesOn()
	if err := errors.Join(b.Kill(t.Context()), b.killPostgres()); err != nil {
		t.Fatal(err)
	}
	a.await("a", 1, first+2)
	goesOn()
	stop()
	writer.Wait()

	said, err := request(t.Context(), http.MethodPost, "http://"+s.Address+"/v3/kv/range",
		`{"key": "aw==", "range_end": "bA==", "keys_only": true}`)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Kvs []struct{ Key string } }
	if err := json.Unmarshal([]byte(said), &answer); err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, kv := range answer.Kvs {
		there[kv.Key] = true
	}
	for _, key := range confirmed {
		if !there[key] {
			t.Errorf("the key %s was confirmed, and is lost", key)
		}
	}
	metrics, err := request(t.Context(), http.MethodGet, "http://"+s.Address+"/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	fences := ""
	for line := range strings.Lines(metrics) {
		if value, ok := strings.CutPrefix(line, "rowkeeper_fences_total"); ok {
			fences = strings.TrimSpace(value[strings.LastIndex(value, " ")+1:])
		}
	}
	if fences != "2" {
		t.Errorf("%s fences", fences)
	}
	t.Logf("%d of %d writes were confirmed", len(confirmed), last.Load())
}
