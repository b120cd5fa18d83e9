package postgres_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

func TestClasses(t *testing.T) {
	for code, want := range map[string]contract.Class{
		"40001": contract.Transient, "40P01": contract.Transient, "55P03": contract.Transient,
		"25006": contract.ReadOnly, "53100": contract.Full, "53200": contract.Unavailable,
		"22021": contract.Data, "54000": contract.Full, "54001": contract.Data, "28P01": contract.Denied,
		"3D000": contract.Denied,
		"42501": contract.Denied, "42P01": contract.Invalid, "57P01": contract.Unavailable,
		"57014": contract.Unavailable, "08006": contract.Unavailable, "XX000": contract.Unavailable,
		"XX001": contract.Invalid, "23505": contract.Transient, "23514": contract.Data, "": contract.Unavailable,
	} {
		if got := postgres.StatementError(&pgconn.PgError{Code: code}).Class; got != want {
			t.Errorf("%q is of class %v, want %v", code, got, want)
		}
	}
}

// Codes with several meanings, told apart by the place in the server's source.
func TestServersOwnTrouble(t *testing.T) {
	for _, c := range []struct {
		err   pgconn.PgError
		class contract.Class
		says  string
	}{
		{pgconn.PgError{Code: "54000", Routine: "GetNewTransactionId"}, contract.Full, "pg_prepared_xacts"},
		{pgconn.PgError{Code: "54000", Routine: "GetNewMultiXactId"}, contract.Full, "VACUUM"},
		{pgconn.PgError{Code: "54000", Routine: "PreCommit_Notify"}, contract.Full, "PostgreSQL:"},
		{pgconn.PgError{Code: "54000", Routine: "_bt_check_third_page"}, contract.Data, "PostgreSQL:"},
		{pgconn.PgError{Code: "XX000", File: "md.c", Routine: "mdextend"}, contract.Full, "no space left"},
		{pgconn.PgError{Code: "XX000", File: "md.c", Routine: "mdzeroextend"}, contract.Full,
			"no space left"},
		{pgconn.PgError{Code: "XX000", File: "md.c", Routine: "mdread"}, contract.Unavailable,
			"PostgreSQL:"},
		{pgconn.PgError{Code: "42501", File: "md.c", Routine: "mdextend"}, contract.Unavailable,
			"read-only"},
		{pgconn.PgError{Code: "42501", File: "aclchk.c", Routine: "aclcheck_error"}, contract.Denied,
			"privilege"},
		{pgconn.PgError{Code: "42501", Message: "permission denied for schema public"}, contract.Denied,
			`GRANT USAGE, CREATE ON SCHEMA "public" TO`},
		{pgconn.PgError{Code: "42501", Message: "permission denied for schema Rowkeeper's"},
			contract.Denied, `GRANT USAGE, CREATE ON SCHEMA "Rowkeeper's" TO`},
		{pgconn.PgError{Code: "42501", Message: "permission denied for table rowkeeper_log"},
			contract.Denied, "SELECT, INSERT"},
		{pgconn.PgError{Code: "42501", Message: "must be owner of table rowkeeper_log"}, contract.Denied,
			"role that owns"},
		{pgconn.PgError{Code: "42501", Message: "new row violates row-level security policy for table " +
			`"rowkeeper_log"`}, contract.Denied, "BYPASSRLS"},
		{pgconn.PgError{Code: "42501", Message: "keine Berechtigung"}, contract.Denied,
			"GRANT USAGE, CREATE"},
	} {
		if got := postgres.StatementError(&c.err); got.Class != c.class ||
			!strings.Contains(got.Error(), c.says) {
			t.Errorf("%s in %s is %v of class %v, want class %v and %q", c.err.Code, c.err.Routine, got,
				got.Class, c.class, c.says)
		}
	}
}
