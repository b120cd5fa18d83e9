package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/logintest"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

// loginServer is a server with a store. A vault makes users there as docs/how-to/logins.md says:
// each is a member of the role that owns the tables.
func loginServer(t *testing.T) logintest.Server {
	t.Helper()
	database := dbtest.Open(t, dbtest.Postgres).URL
	ctx := context.WithoutCancel(t.Context()) // also to clean up
	admin, err := pgx.Connect(ctx, database)
	if err != nil {
		t.Fatal(err)
	}
	owner, vault := fmt.Sprintf("owner_%x", newToken()), fmt.Sprintf("vault_%x", newToken())
	documented := func(block string) (statements []string) {
		for _, s := range logintest.Statements(t, "postgres "+block) {
			statements = append(statements, strings.NewReplacer("rowkeeper", owner, "ROLE vault",
				"ROLE "+vault, "TO vault", "TO "+vault).Replace(s))
		}
		return statements
	}
	exec(t, admin, documented("once")...)
	t.Cleanup(func() {
		for _, s := range []string{"DROP OWNED BY " + owner, "DROP ROLE " + vault, "DROP ROLE " + owner} {
			if _, err := admin.Exec(ctx, s); err != nil {
				t.Error(err)
			}
		}
		admin.Close(ctx)
	})
	create, revoke := documented("create"), documented("revoke")
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.User = nil
	var mu sync.Mutex
	known := map[string]bool{}
	run := func(statements ...string) error {
		mu.Lock()
		defer mu.Unlock()
		for _, s := range statements {
			if _, err := admin.Exec(ctx, s, pgx.QueryExecModeSimpleProtocol); err != nil {
				return err
			}
		}
		return nil
	}
	asVault := func(user, password string, until time.Time, statements ...string) error {
		all := []string{"SET ROLE " + vault}
		for _, s := range statements {
			all = append(all, strings.NewReplacer("{{name}}", user, "{{password}}", password,
				"{{expiration}}", until.UTC().Format(time.RFC3339Nano)).Replace(s))
		}
		return errors.Join(run(all...), run("RESET ROLE"))
	}
	server := logintest.Server{Driver: postgres.Driver, URL: u.String(), Options: options(t),
		Grant: func(user, password string, until time.Time) error {
			if known[user] {
				return asVault(user, password, until,
					`ALTER ROLE "{{name}}" PASSWORD '{{password}}' VALID UNTIL '{{expiration}}'`)
			}
			known[user] = true
			return asVault(user, password, until, create...)
		},
		Revoke: func(user string) error { return asVault(user, "", time.Time{}, revoke...) },
		Sessions: func() (map[string][]int64, error) {
			mu.Lock()
			defer mu.Unlock()
			rows, err := admin.Query(t.Context(), `SELECT usename, pid FROM pg_stat_activity
				WHERE datname = current_database() AND backend_type = 'client backend'`)
			if err != nil {
				return nil, err
			}
			sessions := map[string][]int64{}
			var (
				user *string
				pid  int64
			)
			_, err = pgx.ForEachRow(rows, []any{&user, &pid}, func() error {
				if user != nil {
					sessions[*user] = append(sessions[*user], pid)
				}
				return nil
			})
			return sessions, err
		},
		End: func(user string) error {
			return run(terminate(`usename = '` + user + `'`))
		},
	}
	// The tables are made by a user who is gone when the others come.
	if err := server.Grant("maker_"+owner, "secret", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := postgres.Driver.Migrate(t.Context(), as(t, database, "maker_"+owner, "secret"),
		options(t)); err != nil {
		t.Fatal(err)
	}
	if err := server.Revoke("maker_" + owner); err != nil {
		t.Fatal(err)
	}
	return server
}

func TestUsersEnd(t *testing.T) {
	t.Parallel()
	logintest.UsersEnd(t, loginServer(t))
}

func TestPasswordsEnd(t *testing.T) {
	t.Parallel()
	logintest.PasswordsEnd(t, loginServer(t))
}

func TestRefused(t *testing.T) { logintest.Refused(t, loginServer(t)) }
