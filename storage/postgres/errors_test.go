package postgres_test

import (
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

func TestClasses(t *testing.T) {
	for code, want := range map[string]mvcc.Class{
		"40001": mvcc.Transient, "40P01": mvcc.Transient, "55P03": mvcc.Transient,
		"25006": mvcc.ReadOnly, "53100": mvcc.Full, "53200": mvcc.Unavailable,
		"22021": mvcc.Data, "54000": mvcc.Data, "28P01": mvcc.Denied, "3D000": mvcc.Denied,
		"42501": mvcc.Denied, "42P01": mvcc.Invalid, "57P01": mvcc.Unavailable,
		"57014": mvcc.Unavailable, "08006": mvcc.Unavailable, "XX000": mvcc.Unavailable,
		"XX001": mvcc.Invalid, "23505": mvcc.Transient, "23514": mvcc.Data, "": mvcc.Unavailable,
	} {
		if got := postgres.ClassOf(code); got != want {
			t.Errorf("%q is of class %v, want %v", code, got, want)
		}
	}
}
