package mysql_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// member is a server of MySQL's group replication.
type member struct {
	*dbtest.Server
	// group is the address at which the others find it.
	group string
	id    string
	dead  bool
}

func (m *member) kill() {
	m.dead = true
	m.Kill()
}

// newGroupOfServers starts three servers of this machine that replicate to each other. The first is
// the primary.
func newGroupOfServers(t *testing.T) []*member {
	t.Helper()
	if os.Getenv(dbserver.SourceEnv) != "local" {
		t.Skip("no group of servers: " + dbserver.SourceEnv + " has to be local; make test-versions")
	}
	members := make([]*member, 3)
	var seeds []string
	for i := range members {
		members[i] = &member{group: fmt.Sprint("127.0.0.1:", freePort(t))}
		seeds = append(seeds, members[i].group)
	}
	for i, m := range members {
		m.Server = dbtest.NewServer(t, dbtest.MySQL, dbserver.Options{Dir: os.TempDir(),
			Settings: map[string]string{
				"server-id":                                 fmt.Sprint(i + 1),
				"performance-schema":                        "ON",
				"gtid-mode":                                 "ON",
				"enforce-gtid-consistency":                  "ON",
				"report-host":                               "127.0.0.1",
				"plugin-load-add":                           "group_replication.so",
				"group-replication-group-name":              "aadaaaaa-adda-adda-aaaa-aaaaaaddaaaa",
				"group-replication-start-on-boot":           "OFF",
				"group-replication-local-address":           m.group,
				"group-replication-group-seeds":             strings.Join(seeds, ","),
				"group-replication-recovery-get-public-key": "ON",
			}})
		m.Exec("RESET BINARY LOGS AND GTIDS",
			"CHANGE REPLICATION SOURCE TO SOURCE_USER = 'rowkeeper', SOURCE_PASSWORD = 'letmein' "+
				"FOR CHANNEL 'group_replication_recovery'")
		if err := admin(t, m.URL+"mysql").QueryRow("SELECT @@server_uuid").Scan(&m.id); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			m.bootstrap()
		} else {
			m.Exec("START GROUP_REPLICATION")
		}
		m.takesPart(t)
	}
	return members
}

// bootstrap begins a group.
func (m *member) bootstrap() {
	m.Exec("SET GLOBAL group_replication_bootstrap_group = ON", "START GROUP_REPLICATION",
		"SET GLOBAL group_replication_bootstrap_group = OFF")
}

func (m *member) takesPart(t *testing.T) {
	t.Helper()
	db := admin(t, m.URL+"performance_schema")
	eventually(t, "a member to take part", func() bool {
		var state string
		err := db.QueryRow("SELECT member_state FROM replication_group_members WHERE member_id = @@server_uuid").
			Scan(&state)
		return err == nil && state == "ONLINE"
	})
}

// primary is the member that takes writes, as one that is there sees it.
func primary(t *testing.T, there *member, members []*member) *member {
	t.Helper()
	db := admin(t, there.URL+"performance_schema")
	var found *member
	eventually(t, "a primary", func() bool {
		var id string
		if db.QueryRow("SELECT member_id FROM replication_group_members WHERE member_role = 'PRIMARY' AND member_state = 'ONLINE'").
			Scan(&id) != nil {
			return false
		}
		for _, m := range members {
			if m.id == id && !m.dead { // the others take a while to notice
				found = m
			}
		}
		return found != nil
	})
	return found
}

// TestGroupReplication: a new primary of a group goes on with the store's history. A group that was
// begun anew may have lost some of it, and is another database. After members were forced, which
// nothing tells, the store is fenced by hand.
func TestGroupReplication(t *testing.T) {
	members := newGroupOfServers(t)
	db := members[0].Open()
	migrate(t, db.URL)
	p := newProxy(t, db.URL)
	b := open(t, p.URL)
	mustPut(t, b, "a")
	before, err := b.Identity(t.Context())
	if err != nil || !strings.Contains(before.Actual, "mysql group") {
		t.Fatalf("the identity is %+v, %v", before, err)
	}
	if err := contract.RecordFingerprint(t.Context(), b, before.Actual); err != nil {
		t.Fatal(err)
	}
	// lead leads the store to a member.
	lead := func(m *member) (contract.State, error) {
		t.Helper()
		p.redirect(m.URL)
		p.cutAll()
		var (
			st  contract.State
			err error
		)
		eventually(t, "the new primary to answer", func() bool {
			st, err = b.State(t.Context())
			return err == nil && st.Writable || contract.ClassOf(err) == contract.Fenced
		})
		return st, err
	}

	seen := state(t, b).Head
	members[0].kill()
	second := primary(t, members[1], members)
	st, err := lead(second)
	if err != nil || st.Head != seen {
		t.Fatalf("a new primary: %+v, %v, want the head %+v", st, err, seen)
	}
	mustPut(t, b, "b")

	// The last one has no majority.
	third := members[1]
	if third == second {
		third = members[2]
	}
	seen = state(t, b).Head
	second.kill()
	local := admin(t, third.URL+"mysql")
	eventually(t, "the last one to notice that it is alone", func() bool {
		_, err := local.Exec("SET GLOBAL group_replication_force_members = '" + third.group + "'")
		return err == nil
	})
	exec(t, local, "SET GLOBAL group_replication_force_members = ''")
	if got := primary(t, third, members); got != third {
		t.Fatalf("the primary is %s", got.id)
	}
	if st, err = lead(third); err != nil || st.Head != seen {
		t.Fatalf("a forced primary: %+v, %v, want the head %+v", st, err, seen)
	}
	st, err = contract.StartEpoch(t.Context(), b, contract.Fence{Seen: seen, Replaces: seen.Epoch,
		Token: contract.Token{1}, Jump: 1 << 32, Fingerprint: before.Actual})
	if err != nil || st.Head.Epoch != seen.Epoch+1 {
		t.Fatalf("the fence after it: %+v, %v", st, err)
	}
	mustPut(t, b, "c")

	third.Exec("STOP GROUP_REPLICATION")
	third.bootstrap()
	third.takesPart(t)
	if _, err = lead(third); contract.ClassOf(err) != contract.Fenced || err == nil {
		t.Errorf("a group that was begun anew: %v", err)
	}
}
