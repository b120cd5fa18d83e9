package mysql

import (
	"github.com/go-sql-driver/mysql"
	"log/slog"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// What the tests of this package see of its inside.

// Literal is text.binary.
func Literal(data []byte) string {
	var t text
	t.binary(data)
	return t.String()
}

// MaxLiteral is escapedBytes.
func MaxLiteral(n int) int { return escapedBytes(n) }

// CheckURL parses a URL and returns the configuration of a connection.
func CheckURL(url string) (*mysql.Config, error) {
	c, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	return c.dial(false, slog.New(slog.DiscardHandler))
}

// PoolSizes are the sizes of the pools that follow from a URL.
func PoolSizes(url string) (total int, err error) {
	c, err := parseURL(url)
	if err != nil {
		return 0, err
	}
	return c.poolMax, nil
}

// CheckVersion is checkVersion.
func CheckVersion(version string, mariadb bool) error { return checkVersion(version, mariadb) }

// LimitsFor is limitsFor.
func LimitsFor(maxPacket int) (mvcc.Limits, error) { return limitsFor(maxPacket) }

// LargestGroup returns the length of the texts of a group in which every byte has to be escaped.
func LargestGroup(l mvcc.Limits, g *mvcc.Group) (first, second int) {
	b := &backend{server: &server{hold: 10}, galera: true}
	var one, two text
	b.askGuard(&one, 1<<62, g.Token)
	one.askLive(g.Mutations)
	res := &mvcc.GroupResult{}
	res.Outcomes = make([]mvcc.Outcome, len(g.Mutations))
	for i := range res.Outcomes {
		res.Outcomes[i] = mvcc.Outcome{Accepted: true, Revision: 1 << 62, Create: 1 << 62}
	}
	b.writeGroup(&two, g, res, removedBy(g, res.Outcomes))
	return one.Len(), two.Len()
}

// Statements are the reads by name, with the arguments that a store of n keys below /registry/ would be asked with.
func Statements(n int64) map[string]Statement {
	from, to := []byte("/registry/"), []byte("/registry0")
	return map[string]Statement{
		"state":     {selectState, nil},
		"tail":      {selectTail, []any{false, n / 2, 1000}},
		"tail all":  {selectTail, []any{true, n / 2, 1000}},
		"key":       {selectKey, []any{[]byte("/registry/00000042")}},
		"page":      {selectPage, []any{from, to, n / 2, 500}},
		"page keys": {selectPageKeys, []any{from, to, n / 2, 500}},
	}
}

// Statement is a statement and its arguments.
type Statement struct {
	SQL  string
	Args []any
}
