package mysql_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
)

// TestMigrate: any number of programs may migrate at once, and a migration that was interrupted is
// completed.
func TestMigrate(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		list, err := mysql.Driver.Status(t.Context(), db.URL, options(t))
		if err != nil || len(list) == 0 || !list[0].Applied.IsZero() || list[0].Name != "initial" {
			t.Fatalf("the status of an empty database is %+v, %v", list, err)
		}
		// An interrupted first migration may have left this: some of the tables, one of the rows.
		a := admin(t, db.URL)
		first, err := os.ReadFile("../../migrations/mysql/00001_initial.sql")
		if err != nil {
			t.Fatal(err)
		}
		var steps []string
		if dbtest.OnTiDB(db.Kind) {
			first = []byte(migrations.ForTiDB(string(first)))
		}
		comments := regexp.MustCompile(`(?m)^--.*\n`)
		for _, step := range strings.Split(comments.ReplaceAllString(string(first), ""), ";\n") {
			if step = strings.TrimSpace(step); step != "" {
				steps = append(steps, step)
			}
		}
		if len(steps) != 13 {
			t.Fatalf("the migration has %d statements", len(steps))
		}
		exec(t, a, steps[:8]...)
		var token []byte
		if err := a.QueryRow("SELECT token FROM rowkeeper_log").Scan(&token); err != nil {
			t.Fatal(err)
		}

		const programs = 6
		runs := make(chan int, programs)
		for range programs {
			go func() {
				done, err := mysql.Driver.Migrate(t.Context(), db.URL, options(t))
				if err != nil {
					t.Error(err)
				}
				runs <- len(done)
			}()
		}
		total := 0
		for range programs {
			total += <-runs
		}
		if total != len(list) {
			t.Errorf("%d migrations were run, want %d", total, len(list))
		}
		list, err = mysql.Driver.Status(t.Context(), db.URL, options(t))
		if err != nil || time.Since(list[0].Applied).Abs() > time.Hour {
			t.Errorf("the status is %+v, %v", list, err)
		}
		s := state(t, open(t, db.URL))
		if s.Head.Revision != 1 || string(s.Head.Token[:]) != string(token) {
			t.Errorf("the state is %+v, and the token was %x", s, token)
		}
	}, kinds...)
}
