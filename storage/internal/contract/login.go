package contract

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// Login returns the credentials of a connection that is about to be made. It is called for every
// new connection, by several goroutines at a time.
type Login func(context.Context) (Credentials, error)

// Credentials are what a connection to a server logs in with. Printed or logged, they do not show
// the password.
type Credentials struct {
	// URL, if not empty, names the user and the password, in any way that URLs of the database can
	// name them. All else in it counts for nothing, and so do User and Password.
	URL string
	// User is the name of the user. If it is empty, the user is the one of the database's URL.
	User string
	// Password is the password or the token of the user.
	Password string
	// Expires is when the server begins to refuse these credentials. The zero time means never.
	Expires time.Time
	// UserExpires says that the user ends together with the credentials, as where a vault makes a
	// user for a while. The connections of the user are replaced before. Otherwise connections
	// outlive the credentials, as they do where a token counts only while a connection is made.
	UserExpires bool
	// Refused, if not nil, is called when a server has refused the credentials.
	Refused func()
}

// Format implements [fmt.Formatter].
func (c Credentials) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "credentials of %q", c.User)
	if !c.Expires.IsZero() {
		fmt.Fprintf(f, " until %s", c.Expires.UTC().Format(time.RFC3339))
	}
}

// LogValue implements [slog.LogValuer].
func (c Credentials) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(c)) }

const (
	// renewalShare is the part of a time that is left when something is renewed.
	renewalShare = 10
	// leastRenewal is the least time that is left then, unless that is more than a half.
	leastRenewal = 5 * time.Second
)

// RenewAt returns when credentials that are obtained at a time are to be renewed: when a tenth of
// their time is left, so that those who use them can end what they do. It returns the zero time for
// credentials that never end.
func RenewAt(c Credentials, obtained time.Time) time.Time {
	if c.Expires.IsZero() {
		return time.Time{}
	}
	left := c.Expires.Sub(obtained)
	return c.Expires.Add(-min(max(left/renewalShare, leastRenewal), left/2))
}

// ReplaceAt returns when a connection that is made at a time with these credentials is to be
// replaced, or the zero time if it may outlive them. The rule is that of RenewAt, for the time that
// is left to the connection. So the credentials are renewed before their connections are replaced,
// and if they cannot be renewed, the next connection lives for nine tenths of what is left.
func ReplaceAt(c Credentials, made time.Time) time.Time {
	if !c.UserExpires {
		return time.Time{}
	}
	return RenewAt(c, made)
}

// Passed tells whether a time has come; the zero time never comes.
func Passed(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }
