package mysql_test

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
)

// TestAnotherServer leads new connections to another server, as a proxy, a floating address or a
// changed name does. Its answers are not used before it was fenced; then nothing but it is.
func TestAnotherServer(t *testing.T) {
	eachServer(t, dbserver.Options{Settings: map[string]string{"server-id": "1"}},
		func(t *testing.T, first *dbtest.Server) {
			kind := first.Kind
			second := dbtest.NewServer(t, kind,
				dbserver.Options{Settings: map[string]string{"server-id": "2"}})
			db := first.Open()
			migrate(t, db.URL)
			u, err := url.Parse(db.URL)
			if err != nil {
				t.Fatal(err)
			}
			other, err := second.CreateDatabase(t.Context(), u.Path[1:])
			if err != nil {
				t.Fatal(err)
			}
			migrate(t, other)

			p := newProxy(t, db.URL)
			b := open(t, p.URL)
			mustPut(t, b, "a")
			seen := state(t, b).Head
			before, err := b.Identity(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := contract.RecordFingerprint(t.Context(), b, before.Actual); err != nil {
				t.Fatal(err)
			}
			// It holds the same store, as a restored dump does.
			exec(t, admin(t, other), "UPDATE rowkeeper_store SET identity = '"+before.Store+"'")

			moveTo := func(t *testing.T, cut bool, databaseURL string) {
				if cut {
					p.redirect(databaseURL)
					p.cutAll()
				} else { // a proxy whose clients keep their connections
					p.lead(t, databaseURL)
				}
				for name, ask := range map[string]func() error{
					"state": func() error { _, err := b.State(t.Context()); return err },
					"get":   func() error { _, _, err := b.Get(t.Context(), "a"); return err },
					"commit": func() error {
						_, err := b.Commit(t.Context(), newGroup(seen, put("b", 0, "")))
						return err
					},
					"sweep": func() error { _, _, err := contract.SweepBatch(t.Context(), b, 10); return err },
					"poll": func() error {
						polled, err := b.(contract.Shared).Poll(t.Context(), []contract.Backend{b}, 1)
						if err == nil {
							err = polled[0].Err
						}
						return err
					},
				} {
					var err error
					eventually(t, name+" to say that it is fenced", func() bool {
						err = ask()
						return err == nil || contract.ClassOf(err) != contract.Unavailable
					})
					wantClass(t, err, contract.Fenced)
				}
				_, err := b.Tail(t.Context(), 1, 10, contract.PrevOfAll)
				wantClass(t, err, contract.Fenced)
				id, err := b.Identity(t.Context())
				if err != nil || id.Actual == before.Actual {
					t.Fatalf("the identity is %+v, was %+v, %v", id, before, err)
				}
				st, err := contract.StartEpoch(t.Context(), b,
					contract.Fence{Seen: seen, Token: contract.Token{1},
						Jump: 1 << 32, Fingerprint: id.Actual})
				if err != nil || st.Head.Epoch != seen.Epoch+1 {
					t.Fatalf("the state is %+v, %v", st, err)
				}
				mustPut(t, b, "b")
				seen, before = state(t, b).Head, id
			}
			moveTo(t, true, other)
			// And back, to a server that lacks all that.
			moveTo(t, false, db.URL)
		})
}

// TestRestoredTables: tables that were dropped and created anew are another database, for new
// connections.
func TestRestoredTables(t *testing.T) {
	each(t, func(t *testing.T, db dbtest.DB) {
		p := newProxy(t, db.URL)
		b, a := open(t, p.URL), admin(t, db.URL)
		seen := state(t, b).Head
		before, err := b.Identity(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// The time of the creation is known to the second.
		eventually(t, "another second", func() bool {
			exec(t, a, "DROP TABLE rowkeeper_aborted", "CREATE TABLE rowkeeper_aborted (store "+
				"INT NOT NULL, token BINARY(16) NOT NULL, seen BIGINT NOT NULL, "+
				"PRIMARY KEY (store, token))")
			id, err := b.Identity(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return id.Actual != before.Actual
		})
		p.cutAll()
		eventually(t, "a new connection", func() bool {
			_, _, err = b.Get(t.Context(), "a")
			return contract.ClassOf(err) != contract.Unavailable
		})
		wantClass(t, err, contract.Fenced)
		if _, err := contract.StartEpoch(t.Context(), b, contract.Fence{Seen: seen, Token: contract.Token{1},
			Jump: 1 << 32}); err != nil {
			t.Fatal(err)
		}
		mustPut(t, b, "a")
	})
}

// TestMovedTables puts a copy that was served in another database, and fenced there, in the place
// of the tables: the fingerprint that it brings along is not the one that it has here.
func TestMovedTables(t *testing.T) {
	each(t, func(t *testing.T, db dbtest.DB) {
		drill := dbtest.Open(t, db.Kind)
		migrate(t, drill.URL)
		b := open(t, drill.URL)
		id, err := b.Identity(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		fence := contract.Fence{Seen: state(t, b).Head, Token: contract.Token{1}, Jump: 1 << 32,
			Fingerprint: id.Actual}
		if _, err := contract.StartEpoch(t.Context(), b, fence); err != nil {
			t.Fatal(err)
		}
		here, there := admin(t, db.URL), admin(t, drill.URL)
		var name string
		if err := here.QueryRow("SELECT DATABASE()").Scan(&name); err != nil {
			t.Fatal(err)
		}
		for _, table := range []string{"log", "live", "store", "aborted", "schema"} {
			exec(t, here, "DROP TABLE rowkeeper_"+table)
			exec(t, there, fmt.Sprintf("RENAME TABLE rowkeeper_%[2]s TO %[1]s.rowkeeper_%[2]s",
				name, table))
		}
		moved := open(t, db.URL)
		if id, err = moved.Identity(t.Context()); err != nil || id.Recorded == id.Actual {
			t.Errorf("the identity is %+v, %v", id, err)
		}
	})
}

// TestStoreIsFoundWhereTheAddressLeads: a store that is opened over shared connections is found by
// a new one. Those that are there may lead to where the address led before.
func TestStoreIsFoundWhereTheAddressLeads(t *testing.T) {
	each(t, func(t *testing.T, db dbtest.DB) {
		migrate(t, db.URL)
		shared, err := mysql.Driver.Connect(t.Context(), db.URL, options(t))
		if err != nil {
			t.Fatal(err)
		}
		defer shared.Close()
		first, err := shared.Store(t.Context(), contract.DefaultStore)
		if err != nil {
			t.Fatal(err)
		}
		defer first.Close()
		before, _ := first.(contract.Opened).Opened()
		state(t, first) // by a connection that stays in its pool
		a := admin(t, db.URL)
		// The time of the creation is known to the second.
		eventually(t, "another second", func() bool {
			exec(t, a, "DROP TABLE rowkeeper_aborted", "CREATE TABLE rowkeeper_aborted (store "+
				"INT NOT NULL, token BINARY(16) NOT NULL, seen BIGINT NOT NULL, "+
				"PRIMARY KEY (store, token))")
			id, err := first.Identity(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return id.Actual != before.Actual
		})
		second, err := shared.Store(t.Context(), contract.DefaultStore)
		if err != nil {
			t.Fatal(err)
		}
		defer second.Close()
		if id, _ := second.(contract.Opened).Opened(); id.Actual == before.Actual {
			t.Errorf("the store was found where the address led before: %+v", id)
		}
	})
}
