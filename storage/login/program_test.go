package login_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/login"
)

// sh is the login that a script prints, which has words as $1 and so on.
func sh(script string, words ...string) login.Func {
	return login.Program("sh", append([]string{"-c", script, "login"}, words...)...)
}

func TestProgram(t *testing.T) {
	t.Setenv("LOGIN_OF_THE_TEST", "env")
	for script, want := range map[string]login.Credentials{
		`echo '{"password":"p"}'`: {Password: "p"},
		`echo warning >&2; echo '{"user":"'$1'","password":"'$LOGIN_OF_THE_TEST'",` +
			`"expires":"2030-01-02T03:04:05+01:00","userExpires":true}'`: {User: "a b;c", Password: "env",
			Expires: time.Date(2030, 1, 2, 2, 4, 5, 0, time.UTC), UserExpires: true},
		`cat; printf '\n{"password":"p","expires":"2030-01-02T03:04:05.5Z"}\n\n'`: {Password: "p",
			Expires: time.Date(2030, 1, 2, 3, 4, 5, 5e8, time.UTC)},
	} {
		got, err := sh(script, "a b;c")(t.Context())
		if err != nil || got.User != want.User || got.Password != want.Password ||
			!got.Expires.Equal(want.Expires) || got.UserExpires != want.UserExpires || got.URL != "" {
			t.Errorf("%s: %v, %v, want %v", script, got, err, want)
		}
	}
}

// An error says in one line what went wrong, and shows nothing that was printed as the answer.
func TestProgramFails(t *testing.T) {
	const form = "has not printed a JSON object with a password"
	for script, want := range map[string]string{
		`echo '{"password":"Tr0ub4dor"}'; echo "no
			token" >&2; exit 3`: "login program sh failed (exit status 3): no token",
		`kill -9 $$`:                     "failed (signal: killed)",
		`echo Tr0ub4dor`:                 form,
		``:                               form,
		`echo '{"password":""}'`:         form,
		`echo '{"user":"u"}'`:            form,
		`echo '{"password":"Tr0ub4dor"'`: form,
		`echo '{"password":"Tr0ub4dor"} Tr0ub4dor'`:       form,
		`echo '{"password":"Tr0ub4dor","expiry":"x"}'`:    form,
		`echo '{"password":"p","expires":"Tr0ub4dor"}'`:   form,
		`echo '{"password":"Tr0ub4dor","userExpires":1}'`: form,
		`echo '["Tr0ub4dor"]'; echo why >&2`:              "and nothing else: why",
		`yes Tr0ub4dor | head -c 70000`:                   "more than 65536 bytes",
		`yes noise | head -c 70000 >&2; exit 1`:           "failed (exit status 1): noise",
	} {
		_, err := sh(script)(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret) ||
			strings.Contains(err.Error(), "\n") || len(err.Error()) > 1200 {
			t.Errorf("%s: %v, want %q", script, err, want)
		}
	}
	if _, err := login.Program("/no/such/program")(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "/no/such/program cannot be run") {
		t.Errorf("no program: %v", err)
	}
}

// A program that does not end is killed, also if what it has started lives on.
func TestProgramThatDoesNotEnd(t *testing.T) {
	for _, script := range []string{"exec sleep 60", "sleep 60 & wait"} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		_, err := sh("echo slow >&2; " + script)(ctx)
		cancel()
		if err == nil || !strings.Contains(err.Error(), "did not answer in time: slow") ||
			time.Since(began) > 20*time.Second {
			t.Errorf("%s: %v after %v", script, err, time.Since(began))
		}
	}
	if _, err := sh(`echo '{"password":"p"}'; sleep 5 &`)(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "holds its output open") {
		t.Errorf("a process that stays: %v", err)
	}
}
