package dbtest

import (
	"os"
	"testing"
)

// OnTiDB tells whether a database of a kind is one of TiDB. hack/testbed/tidb.sh says so in the
// environment when it starts a server in the place of MySQL.
func OnTiDB(kind Kind) bool { return kind == MySQL && os.Getenv("ROWKEEPER_TEST_TIDB") != "" }

// NotOnTiDB skips a test that TiDB cannot pass, for a reason.
func NotOnTiDB(t testing.TB, kind Kind, reason string) {
	t.Helper()
	if OnTiDB(kind) {
		t.Skip("TiDB: " + reason)
	}
}
