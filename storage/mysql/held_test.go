package mysql_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
)

// oddValues are values around the size from which on they are variables of the session, of bytes
// that character sets, escapes and conversions might change.
func oddValues() (values [][]byte) {
	random := make([]byte, 3*mysql.HeldBytes)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	every := make([]byte, mysql.HeldBytes)
	for i := range every {
		every[i] = byte(i)
	}
	for _, piece := range []string{"x", `'\`, "\xff\xfe", "\x00", "ä", "\xed\xa0\x80", " ", "\xf0\x9f"} {
		values = append(values, bytes.Repeat([]byte(piece), 1+mysql.HeldBytes/len(piece)))
	}
	return append(values, random, every, every[:len(every)-1], []byte("small"))
}

// TestHeldValues: values are stored as they are, as variables and as literals, in groups of any
// size.
func TestHeldValues(t *testing.T) {
	each(t, func(t *testing.T, db dbtest.DB) {
		values := oddValues()
		b := open(t, db.URL)
		for _, n := range []int{1, 2, 3, len(values), 5, 511} {
			key := func(i int) contract.Key { return contract.Key(fmt.Sprintf("%d of %d", i, n)) }
			g := newGroup(state(t, b).Head)
			for i := range n {
				g.Mutations = append(g.Mutations, put(key(i), 0, string(values[i%len(values)])))
			}
			// A change of a missing key is refused, and its value is a variable all the same.
			g.Mutations = append(g.Mutations, put("missing", 1, string(values[0])))
			res, err := b.Commit(t.Context(), g)
			if err != nil {
				t.Fatal(err)
			}
			if res.Outcomes[n].Accepted {
				t.Error("the key that is missing was changed")
			}
			for i := range n {
				row, _, err := b.Get(t.Context(), key(i))
				if err != nil || row == nil || !bytes.Equal(row.Value, values[i%len(values)]) {
					t.Fatalf("of %d values number %d, of %d bytes, is read as another, %v", n, i,
						len(values[i%len(values)]), err)
				}
			}
		}
	})
}

// TestLostVariables: a proxy goes on with another session of the same server, between the values
// and the group, or within the group. Nothing is written.
func TestLostVariables(t *testing.T) {
	for _, test := range []struct {
		name    string
		matches func(string) bool
	}{
		{"before the lock", locks},
		{"before COMMIT", commits},
	} {
		t.Run(test.name, func(t *testing.T) {
			each(t, func(t *testing.T, db dbtest.DB) {
				p := newProxy(t, db.URL)
				b := open(t, p.URL)
				head := state(t, b).Head
				led := false
				p.on(func(l *link, statement string) verdict {
					if !led && test.matches(statement) {
						led = true
						p.lead(t, db.URL)
						p.follow(l)
						p.stay()
					}
					return forward
				})
				g := newGroup(head, put("small", 0, "1"),
					put("large", 0, strings.Repeat("x", mysql.WorthHolding)))
				_, err := b.Commit(t.Context(), g)
				wantClass(t, err, contract.Unknown)
				if !led {
					t.Error("no statement was led elsewhere")
				}
				r, err := contract.ResolveGroup(t.Context(), b, g.Token, head)
				if err != nil || r.Committed || !r.Aborted {
					t.Errorf("the resolution is %+v, %v", r, err)
				}
				if now := state(t, b).Head; now != head {
					t.Errorf("the head is %+v after it was %+v", now, head)
				}
			})
		})
	}
}
