package app

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

// TestStores creates and lists stores, and names one that is not there.
func TestStores(t *testing.T) {
	database := "--database=sqlite://" + filepath.Join(t.TempDir(), "state.db")
	for _, test := range []struct {
		args []string
		exit int
		want string
	}{
		{[]string{"stores", "list", database}, exitFailure, "run `rowkeeper migrate up`"},
		{[]string{"stores", "create", "team-a", database}, exitOK, "created the store \"team-a\"\n"},
		{[]string{"stores", "create", "team-a", database}, exitOK,
			"the database has a store \"team-a\" already\n"},
		{[]string{"stores", "list", database}, exitOK, "default\nteam-a\n"},
		{[]string{"stores", "create", database}, exitUsage, "name one store"},
		{[]string{"stores", "create", "Team_A", database}, exitUsage,
			"no store can have the name \"Team_A\""},
		{[]string{"fence", "--store=team-a", database}, exitOK, "the history goes on"},
		{[]string{"fence", "--store=team-b", database}, exitFailure,
			"the database has no store \"team-b\": correct the name, or create the store by " +
				"`rowkeeper stores create team-b`"},
		{[]string{"fence", "--store=../team-a", database}, exitUsage,
			"no store can have the name \"../team-a\""},
	} {
		var out bytes.Buffer
		exit := Run(t.Context(), test.args, &out, &out)
		if exit != test.exit || !strings.Contains(out.String(), test.want) {
			t.Errorf("%v exits with %d and says %q, want %d and %q", test.args, exit, out.String(),
				test.exit, test.want)
		}
	}
}
