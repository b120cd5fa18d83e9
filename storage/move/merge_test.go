package move

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// listed is a source of records, of which a pass needs no more than these.
type listed struct {
	source
	records []contract.Record
}

func (l listed) all(_ context.Context, _ clock, each func(*contract.Record) error) (w whole,
	err error) {
	for i := range l.records {
		if err := each(&l.records[i]); err != nil {
			return w, err
		}
	}
	return w, nil
}

// TestPass: a pass makes of each content any other one, also where keys change their places with
// others, and where more than a batch lies between the places that a key had and has.
func TestPass(t *testing.T) {
	const many = batchRecords + 10
	at := func(revision int, key, value string) contract.Record {
		return contract.Record{Key: contract.Key(key), Revision: contract.Revision(revision),
			Create: contract.Revision(revision), Version: 1, Value: []byte(value)}
	}
	var ascending, turned, other []contract.Record
	for i := range many {
		ascending = append(ascending, at(i+3, fmt.Sprintf("/%04d", i), "a"))
		turned = append(turned, at(i+3, fmt.Sprintf("/%04d", many-1-i), "a"))
		other = append(other, at(i+3, fmt.Sprintf("/%04d", i), "b"))
	}
	shifted := []contract.Record{at(3, "/last", "a")}
	for i := range many {
		shifted = append(shifted, at(i+4, fmt.Sprintf("/%04d", i), "a"))
	}
	// A key that goes to the front, and one that goes to the back.
	front := append([]contract.Record{at(2, fmt.Sprintf("/%04d", many-1), "a")},
		ascending[:many-1]...)
	back := append(append([]contract.Record{}, ascending[1:]...), at(many+3, "/0000", "a"))

	ctx := t.Context()
	for name, c := range map[string]struct{ before, after []contract.Record }{
		"into nothing":     {nil, ascending},
		"nothing is left":  {ascending, nil},
		"other values":     {ascending, other},
		"turned":           {ascending, turned},
		"one at the front": {ascending, shifted},
		"without the one":  {shifted, ascending},
		"to the front":     {ascending, front},
		"from the front":   {front, ascending},
		"to the back":      {ascending, back},
		"from the back":    {back, ascending},
	} {
		t.Run(name, func(t *testing.T) {
			b := memdb.New(t.Name(), time.Now).Open(contract.DriverOptions{})
			fill, err := contract.TakeFill(ctx, b, []byte("{}"), many+4, contract.Home{})
			if err != nil {
				t.Fatal(err)
			}
			to := &target{b: b, fill: fill}
			for _, records := range [][]contract.Record{c.before, c.after, c.after} {
				p, err := to.pass(ctx, listed{records: records}, nil,
					func(remove []contract.Key, records []contract.Record) error {
						return fill.Write(ctx, remove, records, nil)
					}, func(int64) {})
				if err != nil {
					t.Fatal(err)
				}
				back, err := to.sum(ctx, func(int64) {})
				if err != nil {
					t.Fatal(err)
				}
				if back.keys != int64(len(records)) || back.String() != p.source.String() {
					t.Fatalf("the target holds %d keys and not the %d of the source", back.keys,
						len(records))
				}
			}
		})
	}
}
