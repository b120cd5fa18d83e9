package postgres_test

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

// To a database that is elsewhere, TLS is verified unless the URL or the environment says
// otherwise.
func TestTLSDefault(t *testing.T) {
	const plain, skipped, verified = "plain", "unverified", "verified"
	for _, c := range []struct {
		url, env string
		want     []string
		clear    bool // a password in clear text is allowed
	}{
		{"postgres://u@db.example.com/d", "", []string{verified}, true},
		{"postgres://u@10.0.0.1/d", "", []string{verified}, true},
		{"postgres://u@a,b/d", "", []string{verified, verified}, true},
		{"postgres://u@a,localhost/d", "", []string{verified, skipped, plain}, false},
		{"postgres://u@db.example.com/d?sslnegotiation=direct", "", []string{verified}, true},
		{"postgres://u@db.example.com/d?sslmode=prefer", "", []string{skipped, plain}, false},
		{"postgres://u@db.example.com/d?sslmode=require", "", []string{skipped}, true},
		{"postgres://u@db.example.com/d?sslmode=disable", "", []string{plain}, false},
		{"postgres://u@db.example.com/d?sslmode=disable&require_auth=password", "", []string{plain}, true},
		{"postgres://u@db.example.com/d?sslmode=verify-full", "", []string{verified}, true},
		{"postgres://u@db.example.com/d", "disable", []string{plain}, false},
		{"postgres://u@localhost/d", "", []string{skipped, plain}, false},
		{"postgres://u@127.0.0.2/d", "", []string{skipped, plain}, false},
		{"postgres://u@[::1]/d", "", []string{skipped, plain}, false},
		{"postgres://u@/d?host=/run/postgresql", "", []string{plain}, true},
	} {
		t.Run(c.url+" "+c.env, func(t *testing.T) {
			t.Setenv("PGSSLMODE", c.env)
			cc, err := postgres.ConnConfig(c.url, options(t))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			add := func(host string, secure, skips bool, name string) {
				switch {
				case !secure:
					got = append(got, plain)
				case skips:
					got = append(got, skipped)
				default:
					got = append(got, verified)
					if name != host {
						t.Errorf("the name to verify is %q", name)
					}
				}
			}
			if cc.TLSConfig != nil {
				add(cc.Host, true, cc.TLSConfig.InsecureSkipVerify, cc.TLSConfig.ServerName)
			} else {
				add(cc.Host, false, false, "")
			}
			for _, f := range cc.Fallbacks {
				if f.TLSConfig != nil {
					add(f.Host, true, f.TLSConfig.InsecureSkipVerify, f.TLSConfig.ServerName)
				} else {
					add(f.Host, false, false, "")
				}
			}
			if !slices.Equal(got, c.want) || (cc.RequireAuth != "!password") != c.clear {
				t.Errorf("the connections are %v with the methods %q, want %v", got, cc.RequireAuth, c.want)
			}
		})
	}
}

// A server without TLS that asks for the password in clear text does not get it.
func TestNoPasswordInClearText(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	answers := make(chan string, 100)
	go func() {
		defer close(answers)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(conn)
			// the request for TLS, or the first message
			first := make([]byte, 8)
			if _, err := r.Read(first); err == nil && first[4] == 4 && first[5] == 210 {
				fmt.Fprint(conn, "N")
				_, _ = r.Read(make([]byte, 1000))
			}
			_, _ = conn.Write([]byte{'R', 0, 0, 0, 8, 0, 0, 0, 3}) // the password, please
			said := make([]byte, 1000)
			n, _ := r.Read(said)
			answers <- string(said[:n])
			conn.Close()
		}
	}()
	for _, mode := range []string{"prefer", "disable"} {
		openError(t, fmt.Sprintf("postgres://user:hunter2@%s/db?sslmode=%s", l.Addr(), mode),
			contract.Denied, "in clear text")
	}
	openError(t, fmt.Sprintf("postgres://user:hunter2@%s/db?sslmode=require", l.Addr()),
		contract.Denied, "offers no TLS", "sslmode=disable")
	l.Close()
	asked := 0
	for said := range answers {
		if asked++; strings.Contains(said, "hunter2") {
			t.Errorf("the client said %q", said)
		}
	}
	if asked == 0 {
		t.Error("nobody was asked for a password")
	}
}
