package sqlite

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	lib "modernc.org/sqlite/lib"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

func TestClassify(t *testing.T) {
	b := &backend{cfg: config{path: "/data/state.db"}}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		name  string
		ctx   context.Context
		err   error
		class contract.Class
		// commit is the class when COMMIT failed so.
		commit contract.Class
		words  string
	}{
		{"busy", t.Context(), &sqlite3.Error{Extended: lib.SQLITE_BUSY}, contract.Transient,
			contract.Transient, "locked by another program"},
		{"busy snapshot", t.Context(), &sqlite3.Error{Extended: lib.SQLITE_BUSY_SNAPSHOT},
			contract.Transient, contract.Transient, "locked by another program"},
		{"full", t.Context(), &sqlite3.Error{Extended: lib.SQLITE_FULL,
			Errno: int32(syscall.ENOSPC)}, contract.Full, contract.Full, "no space left"},
		{"no space at a sync", t.Context(), &sqlite3.Error{Extended: lib.SQLITE_IOERR_FSYNC,
			Errno: int32(syscall.ENOSPC)}, contract.Full, contract.Unknown, "no space left"},
		{"quota", t.Context(), &sqlite3.Error{Extended: lib.SQLITE_IOERR_WRITE,
			Errno: int32(syscall.EDQUOT)}, contract.Full, contract.Unknown, "no space left"},
		{"disk error", t.Context(), &sqlite3.Error{Extended: lib.SQLITE_IOERR_FSYNC,
			Errno: int32(syscall.EIO)}, contract.Unavailable, contract.Unknown, "input/output error"},
		{"read-only", t.Context(), &sqlite3.Error{Extended: lib.SQLITE_READONLY}, contract.ReadOnly,
			contract.ReadOnly, "cannot be written"},
		{"read-only file system", t.Context(), &sqlite3.Error{Extended: lib.SQLITE_IOERR_WRITE,
			Errno: int32(syscall.EROFS)}, contract.ReadOnly, contract.Unknown, "is read-only"},
		{"cannot open", t.Context(), &sqlite3.Error{Extended: lib.SQLITE_CANTOPEN,
			Errno: int32(syscall.EACCES)}, contract.Denied, contract.Unknown, "check the permissions"},
		{"damaged", t.Context(), &sqlite3.Error{Extended: lib.SQLITE_CORRUPT_INDEX}, contract.Invalid,
			contract.Unknown, "is damaged: restore a backup"},
		{"no database", t.Context(), &sqlite3.Error{Extended: lib.SQLITE_NOTADB}, contract.Invalid,
			contract.Unknown, "is not a SQLite database"},
		{"constraint", t.Context(), &sqlite3.Error{Extended: lib.SQLITE_CONSTRAINT_PRIMARYKEY},
			contract.Data, contract.Unknown, "rejected a value"},
		{"too big", t.Context(), &sqlite3.Error{Extended: lib.SQLITE_TOOBIG}, contract.Data,
			contract.Unknown, "rejected a value"},
		{"no memory", t.Context(), &sqlite3.Error{Extended: lib.SQLITE_NOMEM}, contract.Unavailable,
			contract.Unknown, "cannot be used"},
		{"interrupted", ended, &sqlite3.Error{Extended: lib.SQLITE_INTERRUPT}, contract.Unavailable,
			contract.Unknown, "did not answer in time"},
		{"classified before", ended, contract.Errorf(contract.Fenced, "fenced"), contract.Fenced, contract.Unknown,
			"fenced"},
		{"something else", t.Context(), errors.New("something else"), contract.Unavailable,
			contract.Unknown, "something else"},
	} {
		got := b.classify(test.ctx, test.err)
		if contract.ClassOf(got) != test.class || !strings.Contains(got.Error(), test.words) {
			t.Errorf("%s: class %v: %v, want %v: %q", test.name, contract.ClassOf(got), got, test.class,
				test.words)
		}
		if got := b.commitOutcome(test.err); contract.ClassOf(got) != test.commit {
			t.Errorf("%s at COMMIT: class %v: %v, want %v", test.name, contract.ClassOf(got), got,
				test.commit)
		}
	}
	if err := b.classify(ended, nil); err != nil {
		t.Errorf("no error is %v", err)
	}
}

// TestDamagedWhileOpen overwrites pages of the open file.
func TestDamagedWhileOpen(t *testing.T) {
	path := fmt.Sprintf("%s/state.db", t.TempDir())
	filled(t, path, 3000)
	b := open(t, "sqlite://"+path)
	defer b.Close()
	for page := 200; page < 220; page++ {
		damage(t, path, page*pageSize)
	}
	_, err := b.Page(context.Background(), contract.PageQuery{Start: "/", End: "0", Limit: 5000})
	oneSentence(t, err, contract.Invalid, path, "is damaged: restore a backup")
	if _, err := b.State(context.Background()); err != nil {
		t.Errorf("the state, which is not on a damaged page: %v", err)
	}
}
