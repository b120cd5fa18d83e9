package mysql_test

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
)

// parseLiteral reads a literal as the servers' lexers do, and returns what it stands for and what
// follows it.
func parseLiteral(s string) (value []byte, rest string, ok bool) {
	if digits, found := strings.CutPrefix(s, "x'"); found {
		digits, rest, found = strings.Cut(digits, "'")
		value, err := hex.DecodeString(digits)
		return value, rest, found && err == nil
	}
	s, ok = strings.CutPrefix(s, "_binary'")
	if !ok {
		return nil, "", false
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\'' && i+1 < len(s) && s[i+1] == '\'':
			i++
			value = append(value, c)
		case c == '\'':
			return value, s[i+1:], true
		case c == '\\':
			if i++; i == len(s) {
				return nil, "", false
			}
			if escaped := strings.IndexByte("0btnrZ", s[i]); escaped >= 0 {
				value = append(value, "\x00\b\t\n\r\x1a"[escaped])
			} else {
				value = append(value, s[i])
			}
		default:
			value = append(value, c)
		}
	}
	return nil, "", false
}

func FuzzLiteral(f *testing.F) {
	for _, seed := range []string{"", "text", "'", `\`, `'\'`, `\'; DROP TABLE rowkeeper_log; -- `,
		"\x00\n\r\x1a\"%_`?", "ä", "\xff'\\", strings.Repeat(`'\`, 100), strings.Repeat("x", 1000) +
			"'"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		literal := mysql.Literal(data)
		value, rest, ok := parseLiteral(literal + ", 'next'")
		if !ok || !bytes.Equal(value, data) || rest != ", 'next'" {
			t.Fatalf("%q is written as %s, which reads as %q followed by %q", data, literal,
				value, rest)
		}
		// A session that takes a backslash for itself reads another value, and not another end.
		if i := strings.Index(strings.ReplaceAll(literal[strings.Index(literal, "'")+1:], "''", "  "),
			"'"); i != len(literal)-strings.Index(literal, "'")-2 {
			t.Fatalf("%q is written as %s, which ends early without escapes", data, literal)
		}
		if len(literal) > mysql.MaxLiteral(len(data)) {
			t.Fatalf("%d bytes are written as %d", len(data), len(literal))
		}
		for i := range literal {
			if literal[i] >= 0x80 {
				t.Fatalf("%q is written as %q", data, literal)
			}
		}
	})
}

// TestLiterals asks the servers what literals stand for.
func TestLiterals(t *testing.T) {
	each(t, func(t *testing.T, db dbtest.DB) {
		a := admin(t, db.URL)
		rng := rand.New(rand.NewPCG(5, 6))
		alphabets := []string{"'\\", "'\\ab\x00\n\r\x1a\"%_`?-;",
			"abc'\\\x7f\x80\xbf\xc3\xe0\xf0\xff"}
		const strings, columns = 2000, 100
		for range strings / columns {
			var want [][]byte
			var statement []byte
			for i := range columns {
				alphabet := alphabets[rng.IntN(len(alphabets))]
				data := make([]byte, rng.IntN(40))
				for j := range data {
					data[j] = alphabet[rng.IntN(len(alphabet))]
				}
				want = append(want, data)
				statement = append(statement, []string{"SELECT ", ", "}[min(i, 1)]...)
				statement = append(statement, mysql.Literal(data)...)
			}
			got, dest := make([]string, columns), make([]any, columns)
			for i := range got {
				dest[i] = &got[i]
			}
			if err := a.QueryRowContext(t.Context(), string(statement)).Scan(dest...); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
			for i := range want {
				if string(want[i]) != got[i] {
					t.Fatalf("%q came back as %q", want[i], got[i])
				}
			}
		}
	})
}
