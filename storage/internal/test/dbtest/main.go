package dbtest

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	_ "modernc.org/sqlite" // for its version

	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest/tally"
)

// ran and missed count the tests of this process.
func ran(kind Kind, version, source string) {
	tests.Add(tally.Entry{Kind: string(kind), Version: version, Source: source, Tests: 1})
}

func missed(kind Kind, reason string) {
	tests.Add(tally.Entry{Kind: string(kind), Reason: reason, Tests: 1})
}

var tests tally.Tally

var inMain bool

// Main runs a package's tests, removes the servers that they used, says what ran on which database
// and what did not run, and returns the exit code. m is the *testing.M, or what wraps it.
func Main(m interface{ Run() int }) int {
	inMain = true
	code := m.Run()
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		code = max(code, 1)
	}
	err := tests.Write(os.Stderr)
	if path := os.Getenv(tally.Env); path != "" {
		err = errors.Join(err, tests.Append(path))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAIL: report the databases:", err)
		code = max(code, 1)
	}
	return code
}

// mainRan fails a test whose package would leave its servers behind.
func mainRan(t testing.TB) {
	t.Helper()
	if !inMain {
		t.Fatal("the package needs: func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }")
	}
}

// sqliteVersion asks the library once.
var sqliteVersion = sync.OnceValue(func() string {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return err.Error()
	}
	defer db.Close()
	var version string
	if err := db.QueryRow("SELECT sqlite_version()").Scan(&version); err != nil {
		return err.Error()
	}
	return version
})
