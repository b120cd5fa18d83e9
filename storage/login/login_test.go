package login_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/login"
)

const secret = "Tr0ub4dor"

// vault makes a user for an hour whenever it is asked, unless it is told to fail or to be slow.
type vault struct {
	asked atomic.Int64
	fail  atomic.Bool
	slow  atomic.Int64
	ends  bool
}

func (v *vault) login(ctx context.Context) (login.Credentials, error) {
	n := v.asked.Add(1)
	select {
	case <-time.After(time.Duration(v.slow.Load())):
	case <-ctx.Done():
		return login.Credentials{}, ctx.Err()
	}
	if v.fail.Load() {
		return login.Credentials{}, fmt.Errorf("sealed, says answer %d", n)
	}
	c := login.Credentials{User: fmt.Sprint("u", n), Password: secret}
	if v.ends {
		c.Expires = time.Now().Add(time.Hour)
	}
	return c, nil
}

// keep keeps the vault's logins, and returns what a connection gets, and the log.
func keep(t *testing.T, v *vault) (get func() string, last func() login.Credentials, log func() string) {
	t.Helper()
	var (
		buffer bytes.Buffer
		held   login.Credentials
	)
	f := login.Keep(v.login, slog.New(slog.NewTextHandler(&buffer, nil)))
	return func() string {
		c, err := f(t.Context())
		if err != nil {
			return err.Error()
		}
		held = c
		return c.User
	}, func() login.Credentials { return held }, buffer.String
}

// pass lets time pass, in a bubble.
func pass(d time.Duration) { <-time.After(d) }

func want(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestKeepUntilATenthIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		get, _, _ := keep(t, &vault{ends: true})
		want(t, get(), "u1")
		pass(54*time.Minute - 1)
		want(t, get(), "u1")
		pass(1)
		want(t, get(), "u2")
		pass(54 * time.Minute)
		want(t, get(), "u3")
		pass(24 * time.Hour)
		want(t, get(), "u4")
	})
}

func TestKeepForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		get, _, _ := keep(t, &vault{})
		want(t, get(), "u1")
		pass(10000 * time.Hour)
		want(t, get(), "u1")
	})
}

// Many connections at once wait for one answer, the first time and later.
func TestKeepAsksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vault{ends: true}
		v.slow.Store(int64(900 * time.Millisecond))
		f := login.Keep(v.login, nil)
		for _, user := range []string{"u1", "u2"} {
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() {
					if c, err := f(t.Context()); err != nil || c.User != user {
						t.Errorf("%v, %v, want %s", c, err, user)
					}
				})
			}
			all.Wait()
			pass(55 * time.Minute)
		}
		if n := v.asked.Load(); n != 2 {
			t.Errorf("asked %d times", n)
		}
	})
}

// While the old login lives, nobody waits for long, and an error is logged.
func TestKeepTheOldOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vault{ends: true}
		get, _, log := keep(t, v)
		want(t, get(), "u1")
		pass(55 * time.Minute)
		v.fail.Store(true)
		want(t, get(), "u1")
		if s := log(); !strings.Contains(s, "used on") || !strings.Contains(s, "sealed, says answer 2") ||
			strings.Contains(s, secret) {
			t.Errorf("the log says %q", s)
		}
		want(t, get(), "u1") // and does not ask
		if n := v.asked.Load(); n != 2 {
			t.Errorf("asked %d times", n)
		}
		pass(2 * time.Second)
		v.slow.Store(int64(10 * time.Second))
		began := time.Now()
		want(t, get(), "u1")
		if took := time.Since(began); took != time.Second {
			t.Errorf("waited for %v", took)
		}
		want(t, get(), "u1")
		if n := v.asked.Load(); n != 3 {
			t.Errorf("asked %d times", n)
		}
		pass(time.Minute)
		v.slow.Store(0)
		pass(5 * time.Minute) // u1 has ended
		want(t, get(), "sealed, says answer 4")
		want(t, get(), "sealed, says answer 4")
		pass(2 * time.Second)
		v.fail.Store(false)
		want(t, get(), "u5")
	})
}

// An answer that comes too late for whoever has asked is there for the next.
func TestKeepWhatCameLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vault{ends: true}
		v.slow.Store(int64(20 * time.Second))
		f := login.Keep(v.login, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := f(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		pass(15 * time.Second)
		synctest.Wait()
		began := time.Now()
		if c, err := f(t.Context()); err != nil || c.User != "u1" || time.Since(began) != 0 {
			t.Errorf("%v, %v after %v", c, err, time.Since(began))
		}
		// One that never comes ends by itself.
		pass(2 * time.Hour)
		v.slow.Store(int64(time.Hour))
		began = time.Now()
		if _, err := f(t.Context()); !errors.Is(err, context.DeadlineExceeded) ||
			time.Since(began) != 30*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// A login that a server refuses is renewed, once a minute at most.
func TestKeepNothingRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vault{}
		get, last, _ := keep(t, v)
		want(t, get(), "u1")
		first := last()
		pass(59 * time.Second)
		first.Refused()
		want(t, get(), "u1")
		pass(time.Second)
		want(t, get(), "u2")
		pass(time.Hour)
		first.Refused() // is late
		want(t, get(), "u2")
		last().Refused()
		want(t, get(), "u3")
		// If there is no other one, the old one is tried on.
		pass(time.Hour)
		last().Refused()
		v.fail.Store(true)
		want(t, get(), "u3")
	})
}

func TestKeepRefusesWhatNobodyCanUse(t *testing.T) {
	for text, c := range map[string]login.Credentials{
		"ended at 1970-01-01T00:00:00Z": {Password: secret, Expires: time.Unix(0, 0)},
		"does not say when":             {Password: secret, UserExpires: true},
	} {
		f := login.Keep(func(context.Context) (login.Credentials, error) { return c, nil }, nil)
		if _, err := f(t.Context()); err == nil || !strings.Contains(err.Error(), text) ||
			strings.Contains(err.Error(), secret) {
			t.Errorf("%v, want %q", err, text)
		}
	}
	f := login.Keep(func(context.Context) (login.Credentials, error) { panic("a fault") }, nil)
	if _, err := f(t.Context()); err == nil || !strings.Contains(err.Error(), "a fault") {
		t.Errorf("a panic: %v", err)
	}
}

func TestFileAndEnv(t *testing.T) {
	file := filepath.Join(t.TempDir(), "url")
	read := login.File(file)
	if _, err := read(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	env := login.Env("LOGIN_OF_THE_TEST")
	if _, err := env(t.Context()); err == nil || !strings.Contains(err.Error(), "LOGIN_OF_THE_TEST") {
		t.Errorf("no variable: %v", err)
	}
	for _, url := range []string{"postgres://a@h/d", "postgres://b@h/d"} {
		if err := os.WriteFile(file, []byte(url+" \n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("LOGIN_OF_THE_TEST", url+"\n")
		for _, f := range []login.Func{read, env} {
			if c, err := f(t.Context()); err != nil || c.URL != url {
				t.Errorf("%q, %v, want %q", c.URL, err, url)
			}
		}
	}
}
