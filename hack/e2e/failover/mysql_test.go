package failover

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rowkeeper/rowkeeper/hack/verify/readme"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// TestMySQLPage follows docs/how-to/mysql.md on MySQL and on MariaDB.
func TestMySQLPage(t *testing.T) {
	client, err := exec.LookPath("mysql")
	if err != nil {
		if os.Getenv("ROWKEEPER_TEST_CLIENTS") == "require" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	clone, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	walk := walkOf(t, clone, "mysql.md")
	for _, kind := range []programs.Kind{programs.MySQL, programs.MariaDB} {
		t.Run(string(kind), func(t *testing.T) {
			authority, certificate, key := certificates(t)
			server, err := dbserver.Start(t.Context(), kind, dbserver.Options{Own: true, Durable: true,
				TLS: &dbserver.TLS{CA: []byte(authority), Cert: []byte(certificate), Key: []byte(key)}})
			if err != nil {
				missing(t, kind, err)
			}
			t.Cleanup(func() {
				if err := server.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
			root, err := url.Parse(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			password, _ := root.User.Password()
			below := t.TempDir()
			_, api1 := apiServer(t, below, "api1", authority, freePort(t), "0")
			guide := readme.Guide{
				Clone: clone,
				Env: append(os.Environ(), "HOME="+t.TempDir(), "MYSQL_PWD="+password,
					"PATH="+filepath.Join(clone, "bin", "cluster")+
						string(os.PathListSeparator)+os.Getenv("PATH")),
				Replace: map[string]string{"db1:3306": "127.0.0.1:" + root.Port()},
				On: map[string]map[string]string{"api1": api1, "db1": {"mysql ": client +
					" --host=127.0.0.1 --port=" + root.Port() + " --user=" + root.User.Username() + " "}},
				Log: t.Logf,
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := guide.Follow(ctx, walk, below); err != nil {
				t.Fatalf("docs/how-to/mysql.md: %v", err)
			}
		})
	}
}
