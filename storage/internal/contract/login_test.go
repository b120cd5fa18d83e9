package contract

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestRenewAt(t *testing.T) {
	obtained := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for life, want := range map[time.Duration]time.Duration{
		time.Hour:        54 * time.Minute,
		15 * time.Minute: 13*time.Minute + 30*time.Second,
		20 * time.Second: 15 * time.Second,
		4 * time.Second:  2 * time.Second,
		0:                0,
	} {
		c := Credentials{Expires: obtained.Add(life)}
		if got := RenewAt(c, obtained); !got.Equal(obtained.Add(want)) {
			t.Errorf("of %v: renewed after %v, want %v", life, got.Sub(obtained), want)
		}
		if at := ReplaceAt(c, obtained); !at.IsZero() {
			t.Errorf("the connections of a user that stays are replaced at %v", at)
		}
		c.UserExpires = true
		renew := RenewAt(c, obtained)
		// Whenever a connection is made, the credentials are to be renewed before it is replaced,
		// and it is replaced before its user ends.
		for made := obtained; made.Before(c.Expires.Add(-time.Microsecond)); made = made.Add(life / 97) {
			if at := ReplaceAt(c, made); at.Before(renew) || !at.Before(c.Expires) || !at.After(made) {
				t.Errorf("of %v: a connection after %v is replaced after %v", life,
					made.Sub(obtained), at.Sub(obtained))
			}
		}
	}
	if at := ReplaceAt(Credentials{UserExpires: true}, obtained); !at.IsZero() {
		t.Errorf("a user without an end: %v", at)
	}
}

func TestPassed(t *testing.T) {
	at := time.Now()
	if Passed(time.Time{}, at) || Passed(at, at.Add(-1)) || !Passed(at, at) {
		t.Error("a time has not come when it should have")
	}
}

// TestCredentialsAreNotShown: whatever prints or logs credentials shows no password.
func TestCredentialsAreNotShown(t *testing.T) {
	const secret = "Tr0ub4dor"
	c := Credentials{URL: "postgres://u:" + secret + "@h/d", User: "someone", Password: secret,
		Expires: time.Unix(0, 0)}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("login", "c", c)
	slog.New(slog.NewTextHandler(&log, nil)).Info("login", "c", &c)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		fmt.Fprintf(&log, verb, c)
		fmt.Fprintf(&log, verb, &c)
	}
	if s := log.String(); strings.Contains(s, secret) || strings.Contains(s, fmt.Sprintf("%x", secret)) ||
		!strings.Contains(s, "someone") || !strings.Contains(s, "1970-01-01") {
		t.Error(s)
	}
}
