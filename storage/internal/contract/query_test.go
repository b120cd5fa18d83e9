package contract

import (
	"strings"
	"testing"
)

func TestQueryCheck(t *testing.T) {
	const none, several, other, open = "there is no statement", "more than one", "reads nothing", "not closed"
	for sql, want := range map[string]string{
		"SELECT 1":  "",
		"select 1;": "",
		" -- a comment; with 'a quote\nSELECT 1 ;\n -- the end": "",
		"/* SELECT */ WITH x AS (SELECT 1) SELECT * FROM x":     "",
		"(SELECT 1) UNION (SELECT 2)":                           "",
		"VALUES (1)":                                            "",
		"TABLE rowkeeper_objects":                               "",
		"EXPLAIN SELECT 1":                                      "",
		"SELECT ';', \"a;b\", `c;d`":                            "",
		"SELECT 'it''s; fine'":                                  "",
		"SELECT 1/2 - 1":                                        "",
		"":                                                      none,
		" ; ":                                                   other,
		"-- SELECT":                                             none,
		"/* SELECT":                                             none,
		"SELECT 1; SELECT 2":                                    several,
		"SELECT 1; DROP TABLE rowkeeper_log":                    several,
		"SELECT 1 /* ' */; DROP TABLE x --'":                    several,
		"SELECT 1 -- '\n; DROP TABLE x --'":                     several,
		"SELECT ''';'; COMMIT":                                  several,
		"SELECT 'a":                                             open,
		"DELETE FROM rowkeeper_log":                             other,
		"COPY x TO PROGRAM 'id'":                                other,
		"PRAGMA query_only = 0":                                 other,
		"SET TRANSACTION READ WRITE":                            other,
		"selecting":                                             other,
		"'x'":                                                   none,
		"*":                                                     other,
	} {
		err := (&Query{SQL: sql}).Check()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", sql, err, want)
		}
	}
}
