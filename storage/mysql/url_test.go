package mysql_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
)

func TestURL(t *testing.T) {
	t.Setenv("MYSQL_PWD", "from the environment")
	for _, test := range []struct{ url, user, password, network, addr, db, tls string }{
		{"mysql://rk@db.example.com/store", "rk", "from the environment", "tcp",
			"db.example.com:3306", "store", "verify"},
		{"mysql://rk@localhost/store", "rk", "from the environment", "tcp", "localhost:3306", "store",
			"preferred"},
		{"mysql://rk@[::1]/store", "rk", "from the environment", "tcp", "[::1]:3306", "store",
			"preferred"},
		{"mysql://rk@h/store?tls=preferred", "rk", "from the environment", "tcp", "h:3306", "store",
			"preferred"},
		{"mariadb://rk:s%23cr%2Ft@[::1]:3307/store?tls=false", "rk", "s#cr/t", "tcp", "[::1]:3307",
			"store", ""},
		{"mysql://rk:@h/store?tls=true", "rk", "", "tcp", "h:3306", "store", "verify"},
		{"mysql://rk@h/store?tls=verify-ca", "rk", "from the environment", "tcp", "h:3306",
			"store", "ca"},
		{"mysql://rk@h/store?tls=skip-verify", "rk", "from the environment", "tcp", "h:3306",
			"store", "skip"},
		{"mysql://rk@/store?socket=/run/mysqld/mysqld.sock", "rk", "from the environment", "unix",
			"/run/mysqld/mysqld.sock", "store", ""},
	} {
		c, err := mysql.CheckURL(test.url)
		if err != nil {
			t.Errorf("%s: %v", test.url, err)
			continue
		}
		tls := ""
		switch {
		case c.AllowFallbackToPlaintext:
			tls = "preferred"
		case c.TLS != nil && c.TLS.VerifyConnection != nil:
			tls = "ca"
		case c.TLS != nil && c.TLS.InsecureSkipVerify:
			tls = "skip"
		case c.TLS != nil:
			tls = "verify"
		}
		if c.User != test.user || c.Passwd != test.password || c.Net != test.network ||
			c.Addr != test.addr || c.DBName != test.db || tls != test.tls {
			t.Errorf("%s: %q %q %q %q %q %q", test.url, c.User, c.Passwd, c.Net, c.Addr,
				c.DBName, tls)
		}
		if host, _, _ := strings.Cut(test.addr, ":"); test.tls == "verify" && c.TLS.ServerName != host {
			t.Errorf("%s: the certificate has to be of %q", test.url, c.TLS.ServerName)
		}
		if c.AllowCleartextPasswords {
			t.Errorf("%s: the password may be sent in clear text", test.url)
		}
	}
	for url, want := range map[string]time.Duration{
		"mysql://rk@h/store":                    10 * time.Second,
		"mysql://rk@h/store?connect_timeout=3":  3 * time.Second,
		"mysql://rk@h/store?connect_timeout=1m": time.Minute,
	} {
		if c, err := mysql.CheckURL(url); err != nil || c.Timeout != want {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// TestURLErrors: each is one sentence that says what is wrong, without the password.
func TestURLErrors(t *testing.T) {
	for _, test := range []struct{ url, want string }{
		{"mysql://rk:secret@h:port/store", "malformed"},
		{"mysql://rk:sec%zzret@h/store", "malformed"},
		{"mysql:rk:secret", "not of the form mysql://"},
		{"postgres://rk:secret@h/store", "not of the form mysql://"},
		{"mysql://:secret@h/store", "names no user"},
		{"mysql://h/store", "names no user"},
		{"mysql://rk:secret@h", "names no database"},
		{"mysql://rk:secret@h/", "names no database"},
		{"mysql://rk:secret@h/a/b", "more than the name of a database"},
		{"mysql://rk:secret@h/store#x", "fragment"},
		{"mysql://rk:secret@/store", "names no host"},
		{"mysql://rk:secret@a,b/store", "several hosts"},
		{"mysql://rk:secret@h/store?socket=/s", "a host and a socket"},
		{"mysql://rk:secret@h/store?%zz=secret", "parameters"},
		{"mysql://rk:secret@h/store?sslmode=require", `unknown parameter "sslmode"`},
		{"mysql://rk:secret@h/store?tls=true&tls=false", "tls more than once"},
		{"mysql://rk:secret@h/store?tls=yes", "not one of false, preferred, skip-verify, " +
			"verify-ca, true"},
		{"mysql://rk:secret@h/store?tls=false&ssl-ca=ca.pem", "tls=false and certificates"},
		{"mysql://rk:secret@h/store?tls=skip-verify&ssl-ca=ca.pem",
			"tls=skip-verify would not use"},
		{"mysql://rk:secret@h/store?ssl-cert=c.pem", "belong together"},
		{"mysql://rk:secret@h/store?connect_timeout=soon",
			"connect_timeout of the database URL is not a duration"},
		{"mysql://rk:secret@h/store?pool_max_conn_lifetime=0s",
			"pool_max_conn_lifetime of the database URL is not a duration"},
		{"mysql://rk:secret@h/store?pool_max_conn_idle_time=x",
			"pool_max_conn_idle_time of the database URL is not a duration"},
		{"mysql://rk:secret@h/store?pool_max_conns=0",
			"pool_max_conns of the database URL is not a number of at least 1"},
		{"mysql://rk:secret@h/store?ssl-ca=/nonexistent/ca.pem",
			"cannot read the certificate authority"},
		{"mysql://rk:secret@h/store?tls=true&ssl-cert=/nonexistent/c&ssl-key=/nonexistent/k",
			"cannot load the client certificate"},
		{"mysql://rk@h/store?password_file=/nonexistent/p", "cannot read the password file"},
	} {
		_, err := mysql.CheckURL(test.url)
		switch {
		case err == nil:
			t.Errorf("%s is accepted", test.url)
		case !strings.Contains(err.Error(), test.want):
			t.Errorf("%s: %v, want %q", test.url, err, test.want)
		case strings.Contains(err.Error(), "secret"):
			t.Errorf("%s: the error tells the password: %v", test.url, err)
		}
	}
}

// TestPasswordFile: the file is read for each new connection.
func TestPasswordFile(t *testing.T) {
	t.Setenv("MYSQL_PWD", "not this one")
	path := filepath.Join(t.TempDir(), "password")
	for _, content := range []string{"first\n", "second\r\n", " third ", ""} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := mysql.CheckURL("mysql://rk:nor-this@h/store?password_file=" + path)
		if err != nil || c.Passwd != strings.TrimRight(content, "\r\n") {
			t.Errorf("the password is %q, %v", c.Passwd, err)
		}
	}
}

// The user and the password of a connection are those of the login.
func TestLogin(t *testing.T) {
	opts := options(t)
	for _, test := range []struct {
		login contract.Credentials
		want  string
	}{
		{contract.Credentials{URL: "mysql://first:one@h/store"}, "first:one"},
		{contract.Credentials{URL: "mysql://first:two@h/store"}, "first:two"},
		{contract.Credentials{URL: "mysql://second:three@elsewhere/other"}, "second:three"},
		{contract.Credentials{URL: "mysql://"}, "error"},
		{contract.Credentials{URL: "mysql://h/store", User: "second"}, "error"},
		{contract.Credentials{Password: "four"}, "first:four"},
		{contract.Credentials{User: "second", Password: "five"}, "second:five"},
	} {
		login, want := test.login, test.want
		opts.Login = func(context.Context) (contract.Credentials, error) { return login, nil }
		c, err := mysql.Dial("mysql://first:one@h/store?password_file=/nowhere", opts)
		got := "error"
		if err == nil {
			got = c.User + ":" + c.Passwd
		}
		if got != want || err == nil && (c.Addr != "h:3306" || c.DBName != "store") {
			t.Errorf("%v: %+v, %v, want %s", login, c, err, want)
		}
	}
	for user, want := range map[string]string{"": "neither the database URL nor its login names a user",
		"second": ""} {
		opts.Login = func(context.Context) (contract.Credentials, error) {
			return contract.Credentials{User: user, Password: "x"}, nil
		}
		c, err := mysql.Dial("mysql://h/store", opts)
		if want == "" && (err != nil || c.User != user) || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("without a user in the URL, and %q: %v, want %q", user, err, want)
		}
	}
	opts.Login = nil
	if _, err := mysql.Dial("mysql://h/store", opts); err == nil ||
		!strings.Contains(err.Error(), "names no user") {
		t.Errorf("without any user: %v", err)
	}
}

// A token is sent in clear text, and only to a server that has shown its certificate, or in a
// socket.
func TestClearText(t *testing.T) {
	opts := options(t)
	for url, want := range map[string]bool{
		"mysql://u:p@h/d": true, "mysql://u:p@h/d?tls=verify-ca": true,
		"mysql://u:p@h/d?tls=skip-verify": false, "mysql://u:p@h/d?tls=false": false,
		"mysql://u:p@localhost/d": false, "mysql://u:p@/d?socket=/run/s": true,
	} {
		for _, login := range []contract.Credentials{{Password: "token"}, {URL: url}} {
			want := want && login.URL == ""
			opts.Login = func(context.Context) (contract.Credentials, error) { return login, nil }
			if c, err := mysql.Dial(url, opts); err != nil || c.AllowCleartextPasswords != want {
				t.Errorf("%s, with a URL as login: %t: %+v, %v", url, login.URL != "", c, err)
			}
		}
	}
}

// FuzzURL: a URL with a password in it, whatever is around it, is understood or is an error in one
// line without the password.
func FuzzURL(f *testing.F) {
	const secret = "Tr0ub4dor"
	for _, seed := range [][3]string{
		{"", "", "host:3306/db?tls=true"}, {"", "", "/db?socket=/run/mysqld/mysqld.sock"},
		{"%", "%zz", "h/d"}, {"a/", "", "h:x/d"}, {"", "", "[::1]:1/d?ssl-ca=/nowhere"},
		{"", "", "h/d?password_file=/nowhere"}, {"", "#", "h/d"},
		{"", "?", "h/d?connect_timeout=x"}, {" ", "\n", "h/d"}, {"", ")", "tcp(h:1)/d"},
		{"", "", "h/a/b?x=y"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, before, after, rest string) {
		url := "mysql://user:" + before + secret + after + "@" + rest
		if _, err := mysql.CheckURL(url); err != nil &&
			(strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), secret)) {
			t.Errorf("%q: %v", url, err)
		}
	})
}
