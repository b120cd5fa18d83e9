package login

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
)

// Answer is what a program prints, as JSON, for [Program].
type Answer struct {
	// User is the name of the user. If it is left out, the user is the one of the database's URL.
	User string `json:"user,omitempty"`
	// Password is the password or the token.
	Password string `json:"password"`
	// Expires is when the server begins to refuse them, as in RFC 3339. If it is left out, they are
	// kept until a server refuses them.
	Expires *time.Time `json:"expires,omitempty"`
	// UserExpires says that the user itself ends then; see [Credentials].
	UserExpires bool `json:"userExpires,omitempty"`
}

const (
	// mostOutput bounds what a program may print, and mostErrors what an error repeats of that.
	mostOutput = 64 << 10
	mostErrors = 1 << 10
)

// Program returns the login that a program prints as an [Answer]. The program is run without a
// shell, has the environment of this process and no input, and has to end with the exit status 0
// within 30 seconds. If it does not, the error repeats what it has printed to its standard error.
// Every call runs it, so wrap it in [Keep].
func Program(name string, args ...string) Func {
	return func(ctx context.Context) (Credentials, error) {
		return run(ctx, name, args)
	}
}

func run(ctx context.Context, name string, args []string) (Credentials, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	stdout, stderr := &bounded{most: mostOutput}, &bounded{most: mostErrors}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// What the program has started may hold its output open.
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	fail := func(reason string) (Credentials, error) {
		if said := strings.Join(strings.Fields(stderr.kept.String()), " "); said != "" {
			reason += ": " + said
		}
		return Credentials{}, fmt.Errorf("the database's login program %s %s", name, reason)
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil && err != nil:
		return fail("did not answer in time")
	case errors.As(err, &exit):
		return fail("failed (" + exit.Error() + ")")
	case errors.Is(err, exec.ErrWaitDelay):
		return fail("has ended, and something that it started holds its output open")
	case err != nil:
		return fail("cannot be run (" + err.Error() + ")")
	case stdout.cut:
		return fail(fmt.Sprintf("has printed more than %d bytes", mostOutput))
	}
	// The decoder's errors repeat what it has read, which may be a password.
	a, decoder := Answer{}, json.NewDecoder(&stdout.kept)
	decoder.DisallowUnknownFields()
	if decoder.Decode(&a) != nil || !errors.Is(decoder.Decode(&struct{}{}), io.EOF) || a.Password == "" {
		return fail(`has not printed a JSON object with a password, such as {"user": "u", ` +
			`"password": "p", "expires": "2026-01-31T12:00:00Z", "userExpires": true}, and ` +
			`nothing else`)
	}
	c := Credentials{User: a.User, Password: a.Password, UserExpires: a.UserExpires}
	if a.Expires != nil {
		c.Expires = *a.Expires
	}
	return c, nil
}

// bounded keeps the beginning of what is written.
type bounded struct {
	kept bytes.Buffer
	most int
	cut  bool
}

func (b *bounded) Write(p []byte) (int, error) {
	room := min(b.most-b.kept.Len(), len(p))
	b.cut = b.cut || room < len(p)
	b.kept.Write(p[:room])
	return len(p), nil
}
