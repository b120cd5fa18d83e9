package mysql_test

import (
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/mysql"
)

// FuzzURL: a URL with a password in it, whatever is around it, is understood or is an error in one line without the password.
func FuzzURL(f *testing.F) {
	const secret = "Tr0ub4dor"
	for _, seed := range [][3]string{
		{"", "", "host:3306/db?tls=true"}, {"", "", "/db?socket=/run/mysqld/mysqld.sock"}, {"%", "%zz", "h/d"}, {"a/", "", "h:x/d"}, {"", "", "[::1]:1/d?ssl-ca=/nowhere"},
		{"", "", "h/d?password_file=/nowhere"}, {"", "#", "h/d"}, {"", "?", "h/d?connect_timeout=x"}, {" ", "\n", "h/d"}, {"", ")", "tcp(h:1)/d"}, {"", "", "h/a/b?x=y"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, before, after, rest string) {
		url := "mysql://user:" + before + secret + after + "@" + rest
		if _, err := mysql.CheckURL(url); err != nil && (strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), secret)) {
			t.Errorf("%q: %v", url, err)
		}
	})
}
