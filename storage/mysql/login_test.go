package mysql_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/logintest"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
)

// loginServer is a server with a store. Users are made as docs/how-to/logins.md says.
func loginServer(t *testing.T, db dbtest.DB) logintest.Server {
	t.Helper()
	admin := admin(t, db.URL)
	var schema string
	if err := admin.QueryRow("SELECT DATABASE()").Scan(&schema); err != nil {
		t.Fatal(err)
	}
	ctx := context.WithoutCancel(t.Context()) // also to clean up
	run := func(statements ...string) error {
		for _, s := range statements {
			if _, err := admin.ExecContext(ctx, s); err != nil {
				return err
			}
		}
		return nil
	}
	known := map[string]bool{}
	documented := func(statements []string, user, password string) error {
		var all []string
		for _, s := range statements {
			all = append(all, strings.NewReplacer("{{name}}", user, "{{password}}", password,
				"rowkeeper.*", "`"+schema+"`.*").Replace(s))
		}
		return run(all...)
	}
	create, revoke := logintest.Statements(t, "mysql create"), logintest.Statements(t, "mysql revoke")
	sessions := func() (map[string][]int64, error) {
		rows, err := admin.QueryContext(t.Context(),
			"SELECT user, id FROM information_schema.processlist WHERE db = DATABASE()")
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		all := map[string][]int64{}
		for rows.Next() {
			var (
				user string
				id   int64
			)
			if err := rows.Scan(&user, &id); err != nil {
				return nil, err
			}
			all[user] = append(all[user], id)
		}
		return all, rows.Err()
	}
	return logintest.Server{Driver: mysql.Driver, Options: options(t), Sessions: sessions,
		URL: with(t, db.URL, func(u *url.URL, _ url.Values) { u.User = nil }),
		Grant: func(user, password string, _ time.Time) error {
			if known[user] {
				return run(fmt.Sprintf("ALTER USER '%s'@'%%' IDENTIFIED BY '%s'", user, password))
			}
			known[user] = true
			return documented(create, user, password)
		},
		Revoke: func(user string) error { return documented(revoke, user, "") },
		End: func(user string) error {
			all, err := sessions()
			for _, id := range all[user] {
				if err := run(fmt.Sprint("KILL ", id)); err != nil {
					return err
				}
			}
			return err
		},
	}
}

func TestUsersEnd(t *testing.T) {
	each(t, func(t *testing.T, db dbtest.DB) { logintest.UsersEnd(t, loginServer(t, db)) })
}

func TestPasswordsEnd(t *testing.T) {
	each(t, func(t *testing.T, db dbtest.DB) { logintest.PasswordsEnd(t, loginServer(t, db)) })
}

func TestRefused(t *testing.T) {
	each(t, func(t *testing.T, db dbtest.DB) { logintest.Refused(t, loginServer(t, db)) })
}
