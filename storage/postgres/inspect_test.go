package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rowkeeper/rowkeeper/storage/internal/inspect"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

// TestInspectionPlans: the questions that read the large tables do so by their primary keys, with
// statistics and without.
func TestInspectionPlans(t *testing.T) {
	conn := connect(t, migrated(t))
	fill(t, conn)
	for _, statistics := range []string{"missing", "of now"} {
		if statistics == "of now" {
			exec(t, conn, "ANALYZE")
		}
		for q, args := range map[inspect.Question][]string{
			inspect.NextKey:      {`'k/05'`},
			inspect.CountKeys:    {`'k/05'`, `'k/06'`},
			inspect.LivePiece:    {`'k/05'`, `10000`},
			inspect.LogPiece:     {`50000`, `10000`},
			inspect.PartPiece:    {`0`, `10000`},
			inspect.UserPiece:    {`50000`, `10000`},
			inspect.EntryPiece:   {`'\x0000000102'`, `'k/05'`, `'\x00000002'`, `10000`},
			inspect.EntriesPiece: {`'k/05'`, `'l'`, `'\x00000001'`, `'\x00000002'`, `10000`},
		} {
			text := strings.ReplaceAll(postgres.Questions[q], "$store", "1")
			for i, arg := range args {
				text = strings.ReplaceAll(text, fmt.Sprint("$", i+1), arg)
			}
			exec(t, conn, "BEGIN READ ONLY", postgres.InspectorSettings)
			rows, err := conn.Query(t.Context(), "EXPLAIN "+text)
			if err != nil {
				t.Fatalf("%s: %v", q, err)
			}
			plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatalf("%s: %v", q, err)
			}
			exec(t, conn, "ROLLBACK")
			found := false
			for _, step := range plan {
				found = found || strings.Contains(step, "Index") && strings.Contains(step, "_pkey")
				if strings.Contains(step, "Scan on rowkeeper_l") ||
					strings.Contains(step, "Scan on rowkeeper_i") || strings.Contains(step, "Hash") {
					t.Errorf("the %s, with statistics %s: %s", q, statistics, strings.Join(plan, "\n"))
				}
			}
			if !found {
				t.Errorf("the %s, with statistics %s: %s", q, statistics, strings.Join(plan, "\n"))
			}
		}
	}
}
