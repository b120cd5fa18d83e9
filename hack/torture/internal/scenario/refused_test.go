package scenario

import (
	"errors"
	"fmt"
	"testing"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/api"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// TestRefusals: an answer of the wrong class is found, and a /readyz that says otherwise.
func TestRefusals(t *testing.T) {
	full := fmt.Errorf("answer: %w", &api.StatusError{Code: 507})
	away := &api.StatusError{Code: 503, RetryAfter: true}
	unready := errors.New("not ready")
	for _, tc := range []struct {
		kind           programs.Kind
		write, ready   error
		refused, right bool
	}{
		{programs.Postgres, full, nil, true, true},
		{programs.Postgres, full, unready, false, false},
		{programs.Postgres, away, nil, false, false},
		{programs.Postgres, nil, nil, false, false},
		{programs.Postgres, errors.New("no answer"), nil, false, false},
		{programs.SQLite, full, nil, true, true},
		{programs.SQLite, nil, nil, false, true},
		{programs.SQLite, nil, unready, false, false},
		{programs.MySQL, away, unready, true, true},
		{programs.MySQL, away, nil, false, false},
		{programs.MySQL, &api.StatusError{Code: 503}, unready, false, false},
		{programs.MySQL, nil, unready, false, false},
		{programs.MariaDB, full, unready, false, false},
	} {
		refused, err := refusals[tc.kind].wrong(tc.write, tc.ready)
		if refused != tc.refused || tc.right != (err == nil) {
			t.Errorf("%s, answered by %v, with /readyz %v: %t, %v", tc.kind, tc.write, tc.ready,
				refused, err)
		}
	}
}
