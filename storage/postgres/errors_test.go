package postgres_test

import (
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

func TestClasses(t *testing.T) {
	for code, want := range map[string]contract.Class{
		"40001": contract.Transient, "40P01": contract.Transient, "55P03": contract.Transient,
		"25006": contract.ReadOnly, "53100": contract.Full, "53200": contract.Unavailable,
		"22021": contract.Data, "54000": contract.Data, "28P01": contract.Denied, "3D000": contract.Denied,
		"42501": contract.Denied, "42P01": contract.Invalid, "57P01": contract.Unavailable,
		"57014": contract.Unavailable, "08006": contract.Unavailable, "XX000": contract.Unavailable,
		"XX001": contract.Invalid, "23505": contract.Transient, "23514": contract.Data, "": contract.Unavailable,
	} {
		if got := postgres.ClassOf(code); got != want {
			t.Errorf("%q is of class %v, want %v", code, got, want)
		}
	}
}
