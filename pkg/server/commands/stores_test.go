package commands

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
		{[]string{"stores", "list", database}, ExitFailure, "empty database by `rowkeeper migrate up`"},
		{[]string{"migrate", "up", "--store=team-a", database}, ExitFailure,
			"the database has no store \"team-a\": correct the name, or create the store by " +
				"`rowkeeper stores create team-a`"},
		{[]string{"stores", "list", "-database=x"}, ExitUsage, "-database needs two dashes: --database"},
		{[]string{"stores", "list", "-datebase=x"}, ExitUsage, "unknown shorthand flag: 'd'"},
		{[]string{"migrate", "objects"}, ExitFailure, "there is no kubeconfig .bookmarks/kubeconfig: " +
			"name the server's by --kubeconfig"},
		{[]string{"stores", "create", "team-a", database}, ExitOK, "created the store \"team-a\"\n"},
		{[]string{"stores", "create", "team-a", database}, ExitOK,
			"the database has a store \"team-a\" already\n"},
		{[]string{"stores", "list", database}, ExitOK, "default\nteam-a\n"},
		{[]string{"stores", "create", database}, ExitUsage, "name one store"},
		{[]string{"stores", "create", "Team_A", database}, ExitUsage,
			"no store can have the name \"Team_A\""},
		{[]string{"fence", "--store=team-a", database}, ExitOK, "the history goes on"},
		{[]string{"stores", "size", database}, ExitOK,
			"STORE     OBJECTS   MAX OBJECTS   BYTES   MAX BYTES\n" +
				"default   0         unlimited     0       unlimited\n" +
				"team-a    0         unlimited     0       unlimited\n"},
		{[]string{"stores", "limit", "team-a", database}, ExitUsage, "give --objects or --bytes"},
		{[]string{"stores", "limit", "team-a", "--bytes=much", database}, ExitUsage,
			`--bytes "much" is not a number such as 10000 or 500Mi`},
		{[]string{"stores", "limit", "team-b", "--objects=1", database}, ExitFailure,
			`no store "team-b"`},
		{[]string{"stores", "limit", "team-a", "--bytes=2Ki", database}, ExitOK,
			"the store \"team-a\" has 0 of any objects and 0 of 2048 bytes\n"},
		{[]string{"stores", "limit", "team-a", "--objects=10", database}, ExitOK,
			"the store \"team-a\" has 0 of 10 objects and 0 of 2048 bytes\n"},
		{[]string{"stores", "limit", "team-a", "--objects=0", database}, ExitOK,
			"the store \"team-a\" has 0 of any objects and 0 of 2048 bytes\n"},
		{[]string{"stores", "size", "team-b", database}, ExitFailure, `no store "team-b"`},
		{[]string{"stores", "move", database, "--to=team-a"}, ExitUsage, "name one resource"},
		{[]string{"stores", "move", "leases", database}, ExitUsage, "name the other store by --to"},
		{[]string{"stores", "move", "a/b/c", "--to=team-a", database}, ExitUsage,
			`"a/b/c" does not name a resource as group/resource does`},
		{[]string{"stores", "move", "leases", "--to=Team_A", database}, ExitUsage,
			"no store can have the name \"Team_A\""},
		{[]string{"stores", "move", "leases", "--to=team-b", database}, ExitFailure,
			`no store "team-b"`},
		{[]string{"stores", "move", "coordination.k8s.io/leases", "--to=team-a", database}, ExitOK,
			"moved 0 objects; the objects of coordination.k8s.io/leases are in the store \"team-a\"\n"},
		{[]string{"stores", "drop", "team-a", "--confirm=team-a", database}, ExitFailure,
			"`rowkeeper stores move coordination.k8s.io/leases --to default`"},
		{[]string{"stores", "move", "coordination.k8s.io/leases", "--to=default", database}, ExitOK,
			"moved 0 objects; the objects of coordination.k8s.io/leases are in the store \"default\"\n"},
		{[]string{"stores", "drop", "team-a", database}, ExitUsage, "--confirm team-a"},
		{[]string{"stores", "drop", "team-a", "--confirm=team-b", database}, ExitUsage,
			"--confirm team-a"},
		{[]string{"stores", "drop", "default", "--confirm=default", database}, ExitFailure,
			`the store "default" cannot be dropped`},
		{[]string{"stores", "drop", "team-a", "--confirm=team-a", database}, ExitOK,
			"dropped the store \"team-a\"\n"},
		{[]string{"stores", "drop", "team-a", "--confirm=team-a", database}, ExitOK,
			"the store \"team-a\" was dropped before\n"},
		{[]string{"stores", "drop", "team-b", "--confirm=team-b", database}, ExitFailure,
			`no store "team-b"`},
		{[]string{"stores", "list", database}, ExitOK, "default\n"},
		{[]string{"stores", "size", "team-a", database}, ExitFailure, `no store "team-a"`},
		{[]string{"fence", "--store=team-a", database}, ExitFailure, "the store was dropped"},
		{[]string{"stores", "create", "team-a", database}, ExitOK, "created the store \"team-a\"\n"},
		{[]string{"fence", "--store=team-a", database}, ExitOK, "the history goes on"},
		{[]string{"fence", "--store=team-b", database}, ExitFailure,
			"the database has no store \"team-b\": correct the name, or create the store by " +
				"`rowkeeper stores create team-b`"},
		{[]string{"fence", "--store=../team-a", database}, ExitUsage,
			"no store can have the name \"../team-a\""},
	} {
		var out bytes.Buffer
		exit := Run(t.Context(), bookmarks(), test.args, &out, &out)
		if exit != test.exit || !strings.Contains(out.String(), test.want) {
			t.Errorf("%v exits with %d and says %q, want %d and %q", test.args, exit, out.String(),
				test.exit, test.want)
		}
	}
}
