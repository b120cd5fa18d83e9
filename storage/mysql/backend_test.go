package mysql_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/backendtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/logintest"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
)

func TestMain(m *testing.M) {
	logintest.Main()
	os.Exit(dbtest.Main(m))
}

// kinds are the databases of this package.
var kinds = []dbtest.Kind{dbtest.MariaDB, dbtest.MySQL}

// each runs a test on an empty store in each of them.
func each(t *testing.T, f func(t *testing.T, db dbtest.DB)) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		migrate(t, db.URL)
		f(t, db)
	}, kinds...)
}

func options(tb testing.TB) contract.DriverOptions {
	return contract.DriverOptions{Logger: slog.New(slog.NewTextHandler(testWriter{tb}, nil)),
		Timeout: 30 * time.Second}
}

type testWriter struct{ testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.Logf("%s", p)
	return len(p), nil
}

// migrate brings a database to the newest schema.
func migrate(tb testing.TB, url string) {
	tb.Helper()
	if _, err := mysql.Driver.Migrate(context.Background(), url, options(tb)); err != nil {
		tb.Fatal(err)
	}
}

// open opens a backend and closes it when the test ends.
func open(tb testing.TB, url string) contract.Backend {
	tb.Helper()
	b, err := contract.OpenBackend(context.Background(), mysql.Driver, url, options(tb))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := b.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return b
}

func TestBackend(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			backendtest.Run(t, func(t testing.TB) backendtest.Subject {
				db := dbtest.Open(t, kind)
				s := backendtest.OfStore(t, mysql.Driver, db.URL, options)
				if dbtest.OnTiDB(kind) {
					s.Unsized = "TiDB tells no sizes of tables before it has analyzed them"
				}
				return s
			})
		})
	}
}

// TestLimits: the texts of the largest groups fit into the server's packets.
func TestLimits(t *testing.T) {
	if _, err := mysql.LimitsFor(1 << 20); err == nil ||
		!strings.Contains(err.Error(), "max_allowed_packet is 1048576") {
		t.Errorf("a max_allowed_packet of 1 MiB: %v", err)
	}
	for _, packet := range []int{4 << 20, 5 << 20, 16 << 20, 64 << 20, 1 << 30} {
		l, err := mysql.LimitsFor(packet)
		if err != nil {
			t.Fatal(err)
		}
		if l.ValueBytes < 1<<20 || l.GroupBytes < l.KeyBytes+l.ValueBytes ||
			packet >= 16<<20 && l.ValueBytes != 3<<19 {
			t.Errorf("with %d the limits are %+v", packet, l)
		}
		key, value := contract.Key(strings.Repeat("\xff", l.KeyBytes)),
			bytes.Repeat([]byte("'"), l.ValueBytes)
		var large, small, deletes, named []*contract.Mutation
		user := &contract.User{Name: strings.Repeat("'", contract.MaxUserBytes),
			AuditID: strings.Repeat("'", contract.MaxAuditIDBytes)}
		for range l.GroupBytes / (l.KeyBytes + l.ValueBytes) {
			large = append(large, &contract.Mutation{Key: key, Value: value, TTL: 1})
		}
		for range min(l.GroupMutations, l.GroupBytes/(l.KeyBytes+1)) {
			small = append(small, &contract.Mutation{Key: key, Expect: 1 << 62,
				Value: value[:l.GroupBytes/l.GroupMutations-l.KeyBytes], TTL: 1})
			deletes = append(deletes,
				&contract.Mutation{Key: key, Expect: contract.Revision(1<<62 + len(deletes)), Delete: true})
		}
		for range min(l.GroupMutations, l.GroupBytes/(l.KeyBytes+1+user.Bytes())) {
			named = append(named, &contract.Mutation{Key: key, Expect: 1 << 62, By: user,
				Value: value[:l.GroupBytes/l.GroupMutations-l.KeyBytes-user.Bytes()], TTL: 1})
		}
		// The largest conditions that the store takes: of one large value, and of many keys.
		compared := func(comparisons ...contract.Comparison) []*contract.Mutation {
			m := &contract.Mutation{Key: key, Value: value, If: &contract.Condition{
				Comparisons: comparisons}}
			for over := m.If.Bytes() - l.ValueBytes; over > 0; over = m.If.Bytes() - l.ValueBytes {
				if n := len(m.If.Comparisons); n > 1 {
					m.If.Comparisons = m.If.Comparisons[:n-1]
				} else {
					v := &m.If.Comparisons[0].Value
					*v = (*v)[over:]
				}
			}
			return []*contract.Mutation{m}
		}
		ofKeys := contract.Comparison{Start: key, End: key, Property: contract.CompareRevision,
			Operator: contract.NotEqual, Number: -1 << 63}
		ofValue := contract.Comparison{Start: key, End: key, Property: contract.CompareValue,
			Operator: contract.NotEqual, Value: value}
		ofNothing := contract.Comparison{Property: contract.CompareValue,
			Operator: contract.NotEqual}
		for i, ms := range [][]*contract.Mutation{large, small, deletes, named, compared(ofValue),
			compared(slices.Repeat([]contract.Comparison{ofKeys}, 10_000)...),
			compared(slices.Repeat([]contract.Comparison{ofNothing}, 10_000)...)} {
			first, second := mysql.LargestGroup(l, &contract.Group{Mutations: ms})
			// A packet has a byte before the text, and must be smaller than the limit.
			if first+2 > packet || second+2 > packet {
				t.Errorf("the texts of group %d have %d and %d bytes, and max_allowed_packet is %d",
					i, first, second, packet)
			}
		}
	}
}
