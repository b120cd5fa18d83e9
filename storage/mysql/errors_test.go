package mysql_test

import (
	"testing"

	driver "github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
)

// The server's errors mean this for a read, and in answer to COMMIT.
func TestClasses(t *testing.T) {
	const (
		full   = "Error writing file '/data/binlog.000001' (Errcode: 28 - No space left on device)"
		engine = `Got error 122 "Disk quota exceeded" from storage engine InnoDB`
	)
	for _, c := range []struct {
		number       uint16
		text         string
		read, commit contract.Class
	}{
		{1213, "", contract.Transient, contract.Transient},
		{1062, "", contract.Transient, contract.Transient},
		{1290, "", contract.ReadOnly, contract.ReadOnly},
		{1290, "The MySQL server is running with the --super-read-only option so it cannot execute " +
			"this statement", contract.ReadOnly, contract.ReadOnly},
		{1290, "The MariaDB server is running with the --max-session-mem-used=8192 option so it " +
			"cannot execute this statement", contract.Invalid, contract.Invalid},
		{1036, "Table 'rowkeeper_log' is read only", contract.ReadOnly, contract.ReadOnly},
		{1874, "", contract.ReadOnly, contract.ReadOnly},
		{1197, "", contract.Data, contract.Data},
		{1047, "", contract.ReadOnly, contract.ReadOnly},
		{1114, "", contract.Full, contract.Full},
		{1142, "", contract.Denied, contract.Denied},
		{1146, "", contract.Invalid, contract.Invalid},
		{1932, "", contract.Invalid, contract.Invalid},
		{1712, "", contract.Invalid, contract.Invalid},
		{1406, "", contract.Data, contract.Data},
		{4025, "", contract.Data, contract.Data},
		{1026, full, contract.Full, contract.Unknown},
		{3, full, contract.Full, contract.Unknown},
		{1030, engine, contract.Full, contract.Unknown},
		{1030, `Got error 5 "Input/output error" from storage engine`, contract.Unavailable,
			contract.Unknown},
		{1105, "lock wait timeout", contract.Transient, contract.Unknown},
		{1105, "Unknown error", contract.Unavailable, contract.Unknown},
		{1317, "", contract.Unavailable, contract.Unknown},
		{1969, "", contract.Unavailable, contract.Unknown},
		{3024, "", contract.Unavailable, contract.Unknown},
		// a proxy's, when it has lost the connection behind it
		{1040, "", contract.Unavailable, contract.Unknown},
		{1129, "", contract.Unavailable, contract.Unknown},
		{1203, "", contract.Unavailable, contract.Unknown},
		{1226, "", contract.Unavailable, contract.Unknown},
		{1044, "", contract.Denied, contract.Unknown},
		{1045, "", contract.Denied, contract.Unknown},
		{1049, "", contract.Denied, contract.Unknown},
		{1130, "", contract.Denied, contract.Unknown},
		{1698, "", contract.Denied, contract.Unknown},
		{1820, "", contract.Denied, contract.Unknown},
		{1862, "", contract.Denied, contract.Unknown},
		{3118, "", contract.Denied, contract.Unknown},
		{3159, "", contract.Denied, contract.Unknown},
		{4151, "", contract.Denied, contract.Unknown},
		{9001, "", contract.Unavailable, contract.Unknown}, // ProxySQL's
	} {
		const url = "mysql://user@db.example.com/database"
		err := &driver.MySQLError{Number: c.number, Message: c.text}
		if got := contract.ClassOf(mysql.Judge(url, err)); got != c.read {
			t.Errorf("%d %s of a read is of class %v, want %v", c.number, c.text, got, c.read)
		}
		if got := contract.ClassOf(mysql.JudgeCommit(url, err)); got != c.commit {
			t.Errorf("%d %s of a commit is of class %v, want %v", c.number, c.text, got, c.commit)
		}
		if got := contract.ClassOf(mysql.ConnectError(url, err)); got != c.read {
			t.Errorf("%d %s of a connection is of class %v, want %v", c.number, c.text, got, c.read)
		}
	}
}
