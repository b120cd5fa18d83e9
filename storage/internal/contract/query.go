package contract

import (
	"slices"
	"strings"
	"time"
	"unicode"
)

// Query is a statement of a user that reads.
type Query struct {
	SQL string
	// Timeout bounds the time that the database works on it, 0 for as long as the caller waits.
	Timeout time.Duration
}

// queries are the words with which a statement begins that reads.
var queries = []string{"select", "with", "values", "table", "explain"}

// Check refuses what is not one statement that reads. It is no safeguard, which the read-only
// transaction is: it keeps users from being told less than they asked for, and from what a
// read-only transaction allows, such as COPY and SET. It knows quotes and comments as SQL has them.
func (q *Query) Check() error {
	first, end, rest := "", false, q.SQL
	for rest != "" {
		switch c := rest[0]; {
		case strings.HasPrefix(rest, "--"):
			_, rest, _ = strings.Cut(rest, "\n")
			continue
		case strings.HasPrefix(rest, "/*"):
			_, rest, _ = strings.Cut(rest[2:], "*/")
			continue
		case unicode.IsSpace(rune(c)), c == '(' && first == "":
		case c == ';' && first != "":
			end = true
		case end:
			return Errorf(Invalid, "there is more than one statement: give one")
		case c == '\'' || c == '"' || c == '`':
			i := strings.IndexByte(rest[1:], c)
			if i < 0 {
				return Errorf(Invalid, "a quote in the statement is not closed")
			}
			rest = rest[i+1:]
		case first == "":
			n := strings.IndexFunc(rest, func(r rune) bool { return !unicode.IsLetter(r) })
			if n < 0 {
				n = len(rest)
			}
			if first = strings.ToLower(rest[:n]); !slices.Contains(queries, first) {
				return Errorf(Invalid, "the statement reads nothing: it has to begin with %s",
					strings.ToUpper(strings.Join(queries, ", ")))
			}
			rest = rest[n:]
			continue
		}
		rest = rest[1:]
	}
	if first == "" {
		return Errorf(Invalid, "there is no statement: give one that begins with SELECT")
	}
	return nil
}

// QueryError says what has become of a query that the database has refused, or ended since its time
// was over.
func QueryError(late bool, q Query, err error) error {
	if late {
		return Errorf(Unavailable, "the statement took longer than %s and was ended: ask for less, or "+
			"allow it more time (%w)", q.Timeout, err)
	}
	return Errorf(Invalid, "the database refuses the statement: %w", err)
}
