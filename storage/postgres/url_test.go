package postgres_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

// FuzzURL: a URL with a password in it, whatever is around it, is understood or is an error in one
// line without the password.
func FuzzURL(f *testing.F) {
	const secret = "Tr0ub4dor"
	for _, seed := range [][3]string{
		{"", "", "host:5432/db?sslmode=verify-full"},
		{"", "", "a,b:1,[::1]:2/db?pool_max_conns=3&prepared_statements=false"},
		{"%", "%zz", "h/d"}, {"a/", "", "h:x/d"},
		{"", "", "h/d?password_file=/nowhere"}, {"", "#", "h/d"},
		{"", "?", "h/d?connect_timeout=x"}, {" ", "\n", "h/d"}, {"`", "`: ", "h/d?sslmode=no"},
		{"", "", "h/d?lock_timeout=x'; DROP TABLE x; --"}, {"", "", "%00/d"},
		{"", "", "h/d?sslcert=x&sslkey=y"}, {"@/", "", "h/d"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, before, after, rest string) {
		url := "postgres://user:" + before + secret + after + "@" + rest
		err := postgres.CheckURL(url, contract.DriverOptions{Logger: slog.New(slog.DiscardHandler)})
		if err == nil {
			return
		}
		var known *contract.Error
		if !errors.As(err, &known) || strings.Contains(err.Error(), "\n") ||
			strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", url, err)
		}
	})
}
