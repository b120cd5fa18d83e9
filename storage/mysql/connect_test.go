package mysql_test

import (
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
)

// eachServer runs a test on a server of its own of each kind.
func eachServer(t *testing.T, opts dbserver.Options, f func(t *testing.T, s *dbtest.Server)) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) { f(t, dbtest.NewServer(t, kind, opts)) })
	}
}

func file(tb testing.TB, data []byte) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "file")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

func TestTLS(t *testing.T) {
	ca, stranger := dbtest.NewAuthority(t), dbtest.NewAuthority(t)
	caFile, strangerFile := file(t, ca.PEM(t)), file(t, stranger.PEM(t))
	set := func(t *testing.T, databaseURL string, pairs ...string) string {
		return with(t, databaseURL, func(_ *url.URL, q url.Values) {
			q.Del("tls")
			for i := 0; i < len(pairs); i += 2 {
				q.Set(pairs[i], pairs[i+1])
			}
		})
	}
	eachServer(t, dbserver.Options{TLS: ca.Server(t, 0, "127.0.0.1")},
		func(t *testing.T, s *dbtest.Server) {
			db := s.Open()
			a := admin(t, set(t, db.URL))
			migrate(t, set(t, db.URL, "ssl-ca", caFile))
			for _, good := range [][]string{
				{"ssl-ca", caFile}, {"tls", "true", "ssl-ca", caFile},
				{"tls", "verify-ca", "ssl-ca", caFile}, {"tls", "skip-verify"},
				{"tls", "preferred"}, {}, {"tls", "false"},
			} {
				state(t, open(t, set(t, db.URL, good...)))
			}
			fails(t, set(t, db.URL, "tls", "true"), contract.Denied,
				"signed by nobody that this program trusts")
			fails(t, set(t, db.URL, "ssl-ca", strangerFile), contract.Denied,
				"signed by nobody that this program trusts")
			fails(t, set(t, db.URL, "tls", "verify-ca", "ssl-ca", strangerFile), contract.Denied,
				"signed by nobody that this program trusts")

			// An account that has to use TLS, and one that has to show a certificate.
			user := account(t, a, "ALL")
			exec(t, a, fmt.Sprintf("ALTER USER '%s'@'%%' REQUIRE SSL", user))
			state(t, open(t, as(t, set(t, db.URL), user, "its secret")))
			fails(t, as(t, set(t, db.URL, "tls", "false"), user, "its secret"), contract.Denied,
				"access denied")
			exec(t, a, fmt.Sprintf("ALTER USER '%s'@'%%' REQUIRE X509", user))
			fails(t, as(t, set(t, db.URL), user, "its secret"), contract.Denied, "access denied")
			certPEM, keyPEM := ca.Client(t, 0, "client")
			cert, key := file(t, certPEM), file(t, keyPEM)
			b := open(t, as(t, set(t, db.URL, "ssl-ca", caFile, "ssl-cert", cert, "ssl-key", key),
				user, "its secret"))
			state(t, b)
			expired, expiredKey := ca.Client(t, -2*time.Hour, "client")
			// The server says why and closes the connection while the client writes, so the client
			// may see a broken connection, as often as it has bad luck. The advice is the same.
			refused := func(why string, err error) {
				t.Helper()
				if err == nil || !strings.Contains(err.Error(), "check ssl-cert and ssl-key") ||
					strings.Contains(err.Error(), "its secret") {
					t.Fatalf("%s: the error is %v", why, err)
				}
			}
			withExpired := as(t, set(t, db.URL, "ssl-cert", file(t, expired), "ssl-key",
				file(t, expiredKey)), user, "its secret")
			eventually(t, "an expired certificate to be denied", func() bool {
				b, err := contract.OpenBackend(t.Context(), mysql.Driver, withExpired, options(t))
				if err == nil {
					b.Close()
				}
				refused("an expired certificate", err)
				return contract.ClassOf(err) == contract.Denied
			})

			// Certificates and passwords are read for each new connection.
			for path, data := range map[string][]byte{cert: expired, key: expiredKey} {
				if err := os.WriteFile(path, data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "a certificate that has expired since to be denied", func() bool {
				_, err := b.Identity(t.Context()) // on a connection of its own
				refused("a certificate that has expired since", err)
				return contract.ClassOf(err) == contract.Denied
			})
		})

	eachServer(t, dbserver.Options{TLS: ca.Server(t, -2*time.Hour, "127.0.0.1")},
		func(t *testing.T, s *dbtest.Server) {
			db := s.Open()
			fails(t, set(t, db.URL, "ssl-ca", caFile), contract.Denied,
				"the server's certificate is not valid now")
			fails(t, set(t, db.URL, "tls", "verify-ca", "ssl-ca", caFile), contract.Denied,
				"the server's certificate is not valid now")
			migrate(t, set(t, db.URL, "tls", "skip-verify"))
		})
	eachServer(t, dbserver.Options{TLS: ca.Server(t, 0, "db.example.com")},
		func(t *testing.T, s *dbtest.Server) {
			db := s.Open()
			fails(t, set(t, db.URL, "ssl-ca", caFile), contract.Denied,
				"the server's certificate is for another host")
			migrate(t, set(t, db.URL, "tls", "verify-ca", "ssl-ca", caFile))
		})
}

// Percona's builds say wsrep_on also where there is no cluster, and are refused where there is one.
func TestInGalera(t *testing.T) {
	const library, mariadb, percona = "/usr/lib/galera4/libgalera_smm.so", "10.11.19-MariaDB",
		"8.4.5-5.1"
	for _, c := range []struct {
		version, on, provider string
		want, refused         bool
	}{
		{"9.7.4", "", "", false, false},
		{mariadb, "OFF", "none", false, false},
		{mariadb, "ON", "none", false, false},
		{mariadb, "ON", library, true, false},
		{mariadb, "OFF", library, false, false},
		{percona, "ON", "none", false, false},
		{percona, "ON", library, false, true},
	} {
		got, err := mysql.InGalera(map[string]string{"version": c.version, "wsrep_on": c.on,
			"wsrep_provider": c.provider})
		if got != c.want || (err != nil) != c.refused ||
			err != nil && !strings.Contains(err.Error(), "Percona XtraDB Cluster") {
			t.Errorf("%+v: %v, %v", c, got, err)
		}
	}
}

// TestServer changes a server's role and settings, and restarts it. Its binary log is on the disk
// before a commit is confirmed, which is not MariaDB's default: so a restart undoes nothing, and is
// no fence.
func TestServer(t *testing.T) {
	settings := map[string]string{"log-bin": "log", "server-id": "1", "sync-binlog": "1"}
	eachServer(t, dbserver.Options{Settings: settings}, func(t *testing.T, s *dbtest.Server) {
		db := s.Open()
		migrate(t, db.URL)
		b := openFor(t, db.URL, 10*time.Second)
		mustPut(t, b, "a")

		t.Run("read-only", func(t *testing.T) {
			s.Exec("SET GLOBAL read_only = 1")
			// The account may write nevertheless, and must not.
			st := state(t, b)
			if st.Writable {
				t.Error("a read-only server is writable")
			}
			_, err := b.Commit(t.Context(), newGroup(st.Head, put("b", 0, "")))
			wantClass(t, err, contract.ReadOnly)
			for _, write := range []func() error{
				func() error { _, err := contract.RaiseCompacted(t.Context(), b, 1); return err },
				func() error { _, _, err := contract.SweepBatch(t.Context(), b, 1); return err },
				func() error {
					_, err := contract.StartEpoch(t.Context(), b, contract.Fence{Seen: st.Head, Jump: 1})
					return err
				},
				func() error {
					_, err := contract.ResolveGroup(t.Context(), b, contract.Token{1}, st.Head)
					return err
				},
			} {
				wantClass(t, write(), contract.ReadOnly)
			}
			user := account(t, admin(t, db.URL), "SELECT, INSERT, UPDATE, DELETE")
			limited := open(t, as(t, db.URL, user, "its secret"))
			wantClass(t, contract.RecordFingerprint(t.Context(), limited, "x"), contract.ReadOnly)
			s.Exec("SET GLOBAL read_only = 0")
			if st := state(t, b); !st.Writable {
				t.Error("the server is writable again")
			}
			mustPut(t, b, "b")
		})

		t.Run("settings", func(t *testing.T) {
			s.Exec("SET GLOBAL binlog_format = 'STATEMENT'")
			fails(t, db.URL, contract.Invalid, "set binlog_format=ROW")
			s.Exec("SET GLOBAL binlog_format = 'ROW'", "SET GLOBAL max_allowed_packet = 1048576")
			fails(t, db.URL, contract.Invalid, "max_allowed_packet is 1048576 bytes: raise it to "+
				"4194304")
			_, err := b.Identity(t.Context()) // on a new connection
			wantClass(t, err, contract.Invalid)
			s.Exec("SET GLOBAL max_allowed_packet = 16777216")

			// The settings that the statements rely on are made for each session, whatever the
			// server's defaults.
			s.Exec("SET GLOBAL sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
				"SET GLOBAL time_zone = '-07:00'", "SET GLOBAL autocommit = 0",
				"SET GLOBAL completion_type = 'CHAIN'", "SET GLOBAL TRANSACTION ISOLATION LEVEL "+
					"SERIALIZABLE", "SET GLOBAL sql_select_limit = 1",
				"SET GLOBAL sql_safe_updates = 1", "SET GLOBAL max_join_size = 1",
				"SET GLOBAL character_set_client = 'latin1'",
				"SET GLOBAL character_set_connection = 'latin1'")
			// the tests' own connections join, too
			defer s.Exec("SET GLOBAL max_join_size = DEFAULT")
			odd := open(t, db.URL)
			value := `quotes ' and " and \ backslashes \' ä`
			r, err := odd.Commit(t.Context(), newGroup(state(t, odd).Head, put("odd'\\", 0, value),
				put("odd", 0, value)))
			if err != nil || !r.Outcomes[1].Accepted {
				t.Fatalf("%+v, %v", r, err)
			}
			row, _, err := b.Get(t.Context(), "odd'\\")
			if err != nil || row == nil || string(row.Value) != value {
				t.Fatalf("%+v, %v", row, err)
			}
			if d := time.Since(row.Time).Abs(); d > time.Minute {
				t.Errorf("the row's time is %v away", d)
			}
			p, err := odd.Page(t.Context(), contract.PageQuery{Start: "a", End: "z", Limit: 10})
			if err != nil || len(p.Rows) != 4 {
				t.Errorf("the page is %+v, %v", p, err)
			}
			gone := &contract.Mutation{Key: "odd", Expect: r.Outcomes[1].Revision, Delete: true}
			if r, err = odd.Commit(t.Context(), newGroup(state(t, odd).Head, gone)); err != nil ||
				!r.Outcomes[0].Accepted {
				t.Fatalf("%+v, %v", r, err)
			}
		})

		t.Run("limits", func(t *testing.T) {
			// Each is at a value of which the tests' own connections notice nothing.
			limits, keyed := map[string]int64{"max_execution_time": 3_600_000},
				"sql_require_primary_key"
			const all = math.MaxInt64 // MariaDB's default
			if s.Kind == dbtest.MariaDB {
				limits, keyed = map[string]int64{"max_statement_time": 3600,
					"idle_transaction_timeout": 3600, "idle_readonly_transaction_timeout": 3600,
					"idle_write_transaction_timeout": 3600}, "innodb_force_primary_key"
				s.Exec("SET GLOBAL max_session_mem_used = 1073741824")
				defer s.Exec(fmt.Sprint("SET GLOBAL max_session_mem_used = ", all))
			}
			for name, value := range limits {
				s.Exec(fmt.Sprintf("SET GLOBAL %s = %d", name, value))
				defer s.Exec(fmt.Sprintf("SET GLOBAL %s = 0", name))
			}
			s.Exec("SET GLOBAL " + keyed + " = 1")
			defer s.Exec("SET GLOBAL " + keyed + " = 0")
			db := s.Open()
			migrate(t, db.URL)
			b := open(t, db.URL)
			mustPut(t, b, "a")
			for name := range limits {
				if got, err := mysql.SessionVariable(t.Context(), b, name); err != nil || got != 0 {
					t.Errorf("%s is %v, %v", name, got, err)
				}
			}
			if s.Kind == dbtest.MariaDB {
				got, err := mysql.SessionVariable(t.Context(), b, "max_session_mem_used")
				if err != nil || got != all {
					t.Errorf("max_session_mem_used is %v, %v", got, err)
				}
			}
		})

		t.Run("prepared statements", func(t *testing.T) {
			prepared := func() (n int) {
				var name string
				err := admin(t, db.URL).QueryRow("SHOW GLOBAL STATUS LIKE 'Com_stmt_prepare'").
					Scan(&name, &n)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			b, before := open(t, db.URL), prepared()
			want := state(t, b).Head
			for range 10 {
				if got := state(t, b).Head; got != want {
					t.Errorf("the head is %+v, and then %+v", want, got)
				}
			}
			if n := prepared() - before; n != 1 {
				t.Errorf("to read the state eleven times, %d statements were prepared", n)
			}
			// Where none can be prepared, the state is read all the same.
			s.Exec("SET GLOBAL max_prepared_stmt_count = 0")
			defer s.Exec("SET GLOBAL max_prepared_stmt_count = DEFAULT")
			if got := state(t, open(t, db.URL)).Head; got != want {
				t.Errorf("without prepared statements the head is %+v, and not %+v", got, want)
			}
			large, plain := strings.Repeat("'", mysql.WorthHolding), open(t, db.URL)
			if _, err := plain.Commit(t.Context(), newGroup(want, put("large", 0, large))); err != nil {
				t.Fatal(err)
			}
			if row, _, err := plain.Get(t.Context(), "large"); err != nil || string(row.Value) != large {
				t.Errorf("without prepared statements a large value is read as another, %v", err)
			}
		})

		t.Run("idle connections", func(t *testing.T) {
			s.Exec("SET GLOBAL wait_timeout = 1")
			db := s.Open()
			migrate(t, db.URL)
			idle, a := open(t, db.URL), admin(t, db.URL)
			for range 2 {
				head := state(t, idle).Head
				if _, err := idle.Commit(t.Context(),
					newGroup(head, put("missing", head.Revision, ""))); err != nil {
					t.Fatal(err)
				}
				if _, _, err := idle.Get(t.Context(), "a"); err != nil {
					t.Fatal(err)
				}
				// The server closes what is idle. Nobody notices.
				eventually(t, "the connections to be closed", func() bool {
					var n int
					if err := a.QueryRow("SELECT COUNT(*) FROM information_schema.processlist " +
						"WHERE db = DATABASE() AND command = 'Sleep'").Scan(&n); err != nil {
						return false // this one was closed, too
					}
					return n == 0
				})
			}
			s.Exec("SET GLOBAL wait_timeout = DEFAULT")
		})

		t.Run("restart", func(t *testing.T) {
			head := state(t, b).Head
			for i, end := range []func(){s.Kill, s.Stop} {
				end()
				_, err := b.State(t.Context())
				wantClass(t, err, contract.Unavailable)
				_, err = b.Commit(t.Context(), newGroup(head, put("x", 0, "")))
				wantClass(t, err, contract.Unavailable)
				s.Start()
				eventually(t, "the head to be read again", func() bool {
					st, err := b.State(t.Context())
					return err == nil && st.Head == head
				})
				eventually(t, "commits to work again", func() bool {
					r, err := b.Commit(t.Context(),
						newGroup(head, put(contract.Key(fmt.Sprintf("restarted %d", i)), 0, "")))
					if err == nil {
						head = r.State.Head
					}
					return err == nil
				})
			}
		})
	})
}

func TestVersions(t *testing.T) {
	for _, test := range []struct {
		version string
		mariadb bool
		want    string
	}{
		{"8.0.36-0ubuntu0.22.04.1", false, ""},
		{"9.7.4-2", false, ""},
		{"8.4.0", false, ""},
		{"5.7.44-log", false, "MySQL 5.7.44-log: 8.0 or newer"},
		{"10.6.0-MariaDB", true, ""},
		{"10.11.19-MariaDB-0+deb12u1", true, ""},
		{"11.8.6-MariaDB", true, ""},
		{"5.5.5-10.11.2-MariaDB", true, ""},
		{"10.5.23-MariaDB", true, "MariaDB 10.5.23-MariaDB: 10.6 or newer"},
		{"5.5.68-MariaDB", true, "10.6 or newer"},
		{"five", false, `the server's version "five"`},
	} {
		err := mysql.CheckVersion(test.version, test.mariadb)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.version, err, test.want)
		}
	}
}
