// Package login is for programs whose user or password of the database may change while they run:
// because a file is written anew, because a token lives for minutes, or because a vault makes a
// user for an hour. What it returns is the Login of a storage.Config or an etcd.Config.
//
//   - [File] and [Env] read the database's URL from a file or an environment variable.
//   - [Program] runs a program that prints the user and the password. So a program logs in as
//     a cloud or a vault wants it, and links none of their libraries.
//   - Any other [Func] is as good, such as one that calls a cloud's library.
//   - [Keep] remembers what a Func has returned, and renews it before it ends.
//
// # When a login is renewed
//
// A database opens a connection when it needs one, and asks for a login each time. Keep asks its
// Func when no login is known, and again when a tenth of the login's time is left, but at least
// five seconds. Several connections wait for one answer. If there is none within a second, or it is
// an error, the present login is used on while it lives. The log says so.
//
// A server that refuses a login ends it, as after the restore of a database that has never seen the
// user. The next connection asks for another one, but at most once a minute, since each answer
// of a vault may be a new user.
//
// # When a connection is replaced
//
// Most logins count only while a connection is made, and the connection outlives them. If the user
// itself ends (UserExpires), each connection is replaced when a tenth is left of the time between
// its beginning and the end of its user, but at least five seconds: a connection that is unused is
// closed then, and one that is used is closed after the use. What a connection does must end within
// that time. So such a user has to live ten times as long as the longest backup takes.
package login

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Credentials are what a connection to a server logs in with. Printed or logged, they do not show
// the password.
type Credentials = contract.Credentials

// Func returns the credentials of a connection that is about to be made. It is called for every new
// connection, by several goroutines at a time. An error of it must not show a password.
type Func = contract.Login

// File returns the login that a file names by a database's URL. The file is read for every
// connection.
func File(path string) Func {
	return func(context.Context) (Credentials, error) {
		content, err := os.ReadFile(path)
		if err != nil {
			return Credentials{}, err
		}
		return Credentials{URL: strings.TrimSpace(string(content))}, nil
	}
}

// Env returns the login that an environment variable names by a database's URL.
func Env(name string) Func {
	return func(context.Context) (Credentials, error) {
		url := strings.TrimSpace(os.Getenv(name))
		if url == "" {
			return Credentials{}, fmt.Errorf("the environment variable %s is not set", name)
		}
		return Credentials{URL: url}, nil
	}
}

const (
	// answerTime is how long a Func may take to answer.
	answerTime = 30 * time.Second
	// patience is how long a connection waits for new credentials while it could use the old ones.
	patience = time.Second
	// pause is how long a Func is not asked again after an error.
	pause = 2 * time.Second
	// refusedPause is how long a Func is not asked again after an answer that a server refused.
	refusedPause = time.Minute
)

// Keep returns a Func that remembers what f returns, and asks f again when that is about to end or
// was refused. The package's documentation says when. The logger is told if f fails and the old
// credentials are used on; nil means the default of slog.
func Keep(f Func, log *slog.Logger) Func {
	if log == nil {
		log = slog.Default()
	}
	return (&keeper{ask: f, log: log}).login
}

// keeper is what Keep remembers.
type keeper struct {
	ask Func
	log *slog.Logger

	// mu protects the fields below.
	mu sync.Mutex
	// held are the newest credentials, if any were obtained, which was at that time.
	held     Credentials
	obtained time.Time
	// due is when they are to be renewed, zero if never.
	due time.Time
	// err says why there are none, or no newer ones. Until the time of pause nobody is asked.
	err   error
	pause time.Time
	// asking is closed when the answer that is awaited is there; nil if none is.
	asking chan struct{}
}

func (k *keeper) login(ctx context.Context) (Credentials, error) {
	k.mu.Lock()
	now := time.Now()
	usable := k.usable(now)
	if usable && !contract.Passed(k.due, now) || k.asking == nil && now.Before(k.pause) {
		defer k.mu.Unlock()
		return k.answer(now)
	}
	if k.asking == nil {
		k.asking = make(chan struct{})
		// Whoever began to wait may give up, and others wait, too.
		go k.renew(context.WithoutCancel(ctx), k.asking)
	}
	asking := k.asking
	k.mu.Unlock()

	var enough <-chan time.Time
	if usable {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		enough = timer.C
	}
	select {
	case <-asking:
	case <-enough:
	case <-ctx.Done():
		return Credentials{}, fmt.Errorf("the database's login was not there in time: %w", ctx.Err())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.answer(time.Now())
}

// usable tells whether there are credentials that have not ended.
func (k *keeper) usable(now time.Time) bool {
	return !k.obtained.IsZero() && !contract.Passed(k.held.Expires, now)
}

func (k *keeper) answer(now time.Time) (Credentials, error) {
	switch {
	case k.usable(now):
		return k.held, nil
	case k.err != nil:
		return Credentials{}, k.err
	}
	return Credentials{}, errors.New("the database's login has ended, and another one was not there in time")
}

// renew asks for new credentials.
func (k *keeper) renew(ctx context.Context, asking chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var c Credentials
	err := contract.Recovered(func() (err error) {
		if c, err = k.ask(ctx); err == nil {
			err = check(c)
		}
		return err
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	defer close(asking)
	k.asking, k.err = nil, err
	now := time.Now()
	if err != nil {
		k.pause = now.Add(pause)
		if k.usable(now) {
			k.log.Warn("the database's login cannot be renewed, and is used on until it ends", "login",
				k.held, "err", err)
		}
		return
	}
	k.held, k.obtained, k.due = c, now, contract.RenewAt(c, now)
	k.held.Refused = func() {
		k.refused(now)
		if c.Refused != nil {
			c.Refused()
		}
	}
}

// check refuses credentials that nobody can use.
func check(c Credentials) error {
	switch {
	case contract.Passed(c.Expires, time.Now()):
		return fmt.Errorf("the database's login ended at %s, before it was used: see that the clocks "+
			"agree", c.Expires.UTC().Format(time.RFC3339))
	case c.UserExpires && c.Expires.IsZero():
		return errors.New("the database's login has a user that ends, and does not say when")
	}
	return nil
}

// refused makes the credentials that were obtained at a time be renewed.
func (k *keeper) refused(obtained time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.obtained.Equal(obtained) {
		k.due, k.pause = obtained, obtained.Add(refusedPause)
	}
}
