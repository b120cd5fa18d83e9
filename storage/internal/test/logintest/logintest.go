// Package logintest is for tests of the drivers whose servers have users. It is a vault that makes
// users of a real server for a few seconds, and the program that asks it: the test's own, begun
// again.
package logintest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/login"
)

// word is the first argument of the program that asks a vault.
const word = "log-in"

// Main is called first of all by the TestMain of a package. If the test's program is run to ask a
// vault, Main does that and does not return.
func Main() {
	if len(os.Args) != 3 || os.Args[1] != word {
		return
	}
	response, err := http.Get(os.Args[2])
	if err == nil {
		defer response.Body.Close()
		if _, err = io.Copy(os.Stdout, response.Body); response.StatusCode != http.StatusOK {
			err = fmt.Errorf("the vault says %s", response.Status)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Server is a database server with a store.
type Server struct {
	Driver contract.Driver
	// URL names the store's database, and no user.
	URL     string
	Options contract.DriverOptions
	// Grant creates a user who may use the store, or gives the user that there is a password, until
	// a time.
	Grant func(user, password string, until time.Time) error
	// Revoke removes a user as a vault does, and ends no session.
	Revoke func(user string) error
	// Sessions returns the sessions in the database, by user.
	Sessions func() (map[string][]int64, error)
	// End ends all sessions of a user.
	End func(user string) error
}

// Statements returns those that the page about logins shows to whoever sets up a vault, in the
// block that begins with a comment.
func Statements(t *testing.T, name string) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/how-to/logins.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, found := strings.Cut(string(page), "```sql\n-- "+name+"\n")
	block, _, ended := strings.Cut(block, ";\n```")
	if !found || !ended {
		t.Fatalf("the page has no statements %q", name)
	}
	return strings.Split(block, ";\n")
}

// vault gives everybody who asks a user or a password that ends.
type vault struct {
	server Server
	life   time.Duration
	// user, if not empty, is the one who gets another password each time. Otherwise each answer has
	// a user of its own.
	user string

	mu sync.Mutex
	// ends says when each user ends, or the last password of the user.
	ends    map[string]time.Time
	answers int
}

// ServeHTTP implements [http.Handler].
func (v *vault) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.answers++
	user := v.user
	if user == "" {
		user = fmt.Sprintf("v_%s", strings.ToLower(rand.Text()[:12]))
	}
	password, until := rand.Text(), time.Now().Add(v.life).Truncate(time.Microsecond)
	if err := v.server.Grant(user, password, until); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	v.ends[user] = until
	_ = json.NewEncoder(w).Encode(login.Answer{User: user, Password: password, Expires: &until,
		UserExpires: v.user == ""})
}

// open begins a vault, and opens the store with a login program that asks it.
func open(t *testing.T, v *vault) contract.Backend {
	t.Helper()
	v.ends = map[string]time.Time{}
	s := httptest.NewServer(v)
	t.Cleanup(s.Close)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := v.server.Options
	o.Login = login.Keep(login.Program(program, word, s.URL), o.Logger)
	b, err := contract.OpenBackend(t.Context(), v.server.Driver, v.server.URL, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		for user := range v.ends {
			if err := v.server.Revoke(user); err != nil {
				t.Error(err)
			}
		}
	})
	return b
}

// use commits and reads for a time, and calls a function between.
func use(t *testing.T, b contract.Backend, how time.Duration, between func()) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(how); time.Now().Before(end); <-tick.C {
		if err := commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		between()
	}
}

// commit reads the state, and writes a key.
func commit(ctx context.Context, b contract.Backend) error {
	state, err := b.State(ctx)
	if err != nil {
		return err
	}
	g := &contract.Group{Seen: state.Head, Mutations: []*contract.Mutation{
		{Key: contract.Key(rand.Text()), Value: []byte("value")}}}
	_, _ = rand.Read(g.Token[:])
	_, err = b.Commit(ctx, g)
	return err
}

// UsersEnd is a test of users who end: nobody who uses the store notices it, and no session
// outlives its user.
func UsersEnd(t *testing.T, server Server) {
	v := &vault{server: server, life: 6 * time.Second}
	b := open(t, v)
	if n, ok := b.(contract.Notifier); ok {
		listening := make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		var listener sync.WaitGroup
		listener.Go(func() {
			n.Listen(ctx, func(contract.Revision) {}, func(err error) {
				if err != nil && ctx.Err() == nil {
					t.Errorf("the listener: %v", err)
				}
				select {
				case listening <- struct{}{}:
				default:
				}
			})
		})
		defer listener.Wait()
		defer cancel()
		<-listening
	}
	users := map[string]bool{}
	use(t, b, 3*v.life, func() {
		sessions, err := server.Sessions()
		if err != nil {
			t.Fatal(err)
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		now := time.Now()
		for user, end := range v.ends {
			users[user] = users[user] || len(sessions[user]) > 0
			if now.Before(end) {
				continue
			}
			if n := len(sessions[user]); n > 0 {
				t.Errorf("%d sessions have outlived their user by %v", n, now.Sub(end))
			}
			if err := server.Revoke(user); err != nil {
				t.Error(err)
			}
			delete(v.ends, user)
		}
	})
	if n := len(users); n < 3 || n > 8 || slices.Contains(slices.Collect(maps.Values(users)), false) {
		t.Errorf("these users have been there, and have had sessions: %v", users)
	}
}

// PasswordsEnd is a test of passwords that end: sessions live on, and new ones have new passwords.
func PasswordsEnd(t *testing.T, server Server) {
	v := &vault{server: server, life: 4 * time.Second,
		user: fmt.Sprintf("v_%s", strings.ToLower(rand.Text()[:12]))}
	b := open(t, v)
	sessions := func() []int64 {
		t.Helper()
		all, err := server.Sessions()
		if err != nil {
			t.Fatal(err)
		}
		return all[v.user]
	}
	use(t, b, time.Second, func() {})
	first := sessions()
	use(t, b, v.life, func() {})
	if later := sessions(); !slices.ContainsFunc(first, func(id int64) bool {
		return slices.Contains(later, id)
	}) {
		t.Errorf("the sessions %v have not outlived their password: %v", first, later)
	}
	if err := server.End(v.user); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; {
		err := commit(t.Context(), b)
		if err == nil {
			break
		}
		if contract.ClassOf(err) == contract.Denied || time.Now().After(end) {
			t.Fatal(err)
		}
	}
	use(t, b, time.Second, func() {})
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.answers != 2 {
		t.Errorf("the vault was asked %d times", v.answers)
	}
}

// Refused is a test of credentials that the server refuses: whoever has given them is told, and the
// error names the user and shows no password.
func Refused(t *testing.T, server Server) {
	user := fmt.Sprintf("v_%s", strings.ToLower(rand.Text()[:12]))
	if err := server.Grant(user, "right", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Revoke(user); err != nil {
			t.Error(err)
		}
	}()
	password, refused := "not-the-right-one", 0
	o := server.Options
	o.Login = func(context.Context) (contract.Credentials, error) {
		return contract.Credentials{User: user, Password: password, Refused: func() {
			password = "right"
			refused++
		}}, nil
	}
	b, err := contract.OpenBackend(t.Context(), server.Driver, server.URL, o)
	if err == nil {
		b.Close()
		t.Fatal("the wrong password is not refused")
	}
	if contract.ClassOf(err) != contract.Denied || !strings.Contains(err.Error(), user) ||
		strings.Contains(err.Error(), "not-the-right-one") || refused == 0 {
		t.Errorf("told %d times: %v", refused, err)
	}
	b, err = contract.OpenBackend(t.Context(), server.Driver, server.URL, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}
