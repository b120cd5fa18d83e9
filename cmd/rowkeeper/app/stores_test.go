package app

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

// TestStores creates and lists stores, moves a resource, and names a store that is not there.
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
		{[]string{"stores", "size", database}, exitOK,
			"STORE     OBJECTS   OF    BYTES   OF\ndefault   0         any   0       any\n" +
				"team-a    0         any   0       any\n"},
		{[]string{"stores", "limit", "team-a", database}, exitUsage, "give --objects or --bytes"},
		{[]string{"stores", "limit", "team-a", "--bytes=much", database}, exitUsage,
			`--bytes "much" is not a number such as 10000 or 500Mi`},
		{[]string{"stores", "limit", "team-b", "--objects=1", database}, exitFailure,
			`no store "team-b"`},
		{[]string{"stores", "limit", "team-a", "--bytes=2Ki", database}, exitOK,
			"the store \"team-a\" has 0 of any objects and 0 of 2048 bytes\n"},
		{[]string{"stores", "limit", "team-a", "--objects=10", database}, exitOK,
			"the store \"team-a\" has 0 of 10 objects and 0 of 2048 bytes\n"},
		{[]string{"stores", "limit", "team-a", "--objects=0", database}, exitOK,
			"the store \"team-a\" has 0 of any objects and 0 of 2048 bytes\n"},
		{[]string{"stores", "size", "team-b", database}, exitFailure, `no store "team-b"`},
		{[]string{"stores", "move", database, "--to=team-a"}, exitUsage, "name one resource"},
		{[]string{"stores", "move", "leases", database}, exitUsage, "name the other store by --to"},
		{[]string{"stores", "move", "a/b/c", "--to=team-a", database}, exitUsage,
			`"a/b/c" does not name a resource as group/resource does`},
		{[]string{"stores", "move", "leases", "--to=Team_A", database}, exitUsage,
			"no store can have the name \"Team_A\""},
		{[]string{"stores", "move", "leases", "--to=team-b", database}, exitFailure,
			`no store "team-b"`},
		{[]string{"stores", "move", "coordination.k8s.io/leases", "--to=team-a", database}, exitOK,
			"moved 0 objects; the objects of coordination.k8s.io/leases are in the store \"team-a\"\n"},
		{[]string{"stores", "drop", "team-a", "--confirm=team-a", database}, exitFailure,
			"`rowkeeper stores move coordination.k8s.io/leases --to default`"},
		{[]string{"stores", "move", "coordination.k8s.io/leases", "--to=default", database}, exitOK,
			"moved 0 objects; the objects of coordination.k8s.io/leases are in the store \"default\"\n"},
		{[]string{"stores", "drop", "team-a", database}, exitUsage, "--confirm team-a"},
		{[]string{"stores", "drop", "team-a", "--confirm=team-b", database}, exitUsage,
			"--confirm team-a"},
		{[]string{"stores", "drop", "default", "--confirm=default", database}, exitFailure,
			`the store "default" cannot be dropped`},
		{[]string{"stores", "drop", "team-a", "--confirm=team-a", database}, exitOK,
			"dropped the store \"team-a\"\n"},
		{[]string{"stores", "drop", "team-a", "--confirm=team-a", database}, exitOK,
			"the store \"team-a\" was dropped before\n"},
		{[]string{"stores", "drop", "team-b", "--confirm=team-b", database}, exitFailure,
			`no store "team-b"`},
		{[]string{"stores", "list", database}, exitOK, "default\n"},
		{[]string{"stores", "size", "team-a", database}, exitFailure, `no store "team-a"`},
		{[]string{"fence", "--store=team-a", database}, exitFailure, "the store was dropped"},
		{[]string{"stores", "create", "team-a", database}, exitOK, "created the store \"team-a\"\n"},
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
