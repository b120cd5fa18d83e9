package postgres

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// classes says what the server's errors mean for what was asked: the longest matching beginning of
// the SQLSTATE counts. All of them mean that the transaction was rolled back.
var classes = map[string]mvcc.Class{
	"":      mvcc.Unavailable,
	"08":    mvcc.Unavailable, // connection exceptions
	"0A":    mvcc.Invalid,     // a feature that the server does not have
	"22":    mvcc.Data,        // values that are not accepted
	"23":    mvcc.Data,        // constraints
	"23505": mvcc.Transient,   // the log's primary key: somebody wrote past the commit lock
	"25006": mvcc.ReadOnly,    // read-only transaction: a standby, or set so
	"25P03": mvcc.Unavailable, // idle in transaction for too long
	"25P04": mvcc.Unavailable, // transaction timeout
	"26000": mvcc.Denied,      // prepared statement not there: a pooler
	"28":    mvcc.Denied,      // wrong password, or no entry in pg_hba.conf
	"3D000": mvcc.Denied,      // no such database
	"3F000": mvcc.Invalid,     // no such schema
	"40001": mvcc.Transient,   // serialization failure
	"40P01": mvcc.Transient,   // deadlock
	"42":    mvcc.Invalid,     // the tables are not those that this program knows
	"42501": mvcc.Denied,      // missing privilege
	"42704": mvcc.Denied,      // a setting in the URL that the server does not know
	"42P05": mvcc.Denied,      // prepared statement already there: a pooler
	"53":    mvcc.Unavailable, // too many connections, out of memory
	"53100": mvcc.Full,        // disk full
	"54":    mvcc.Data,        // program limits
	"55P03": mvcc.Transient,   // lock not available in time
	"57":    mvcc.Unavailable, // shutdown, crash, statement timeout
	"57P04": mvcc.Denied,      // the database was dropped
	"58":    mvcc.Unavailable, // system errors
	"XX001": mvcc.Invalid,     // data corrupted
	"XX002": mvcc.Invalid,     // index corrupted
}

func classOf(code string) mvcc.Class {
	for end := len(code); ; end-- {
		if class, ok := classes[code[:end]]; ok {
			return class
		}
	}
}

// statementError says what an error of the server means, in one sentence.
func statementError(e *pgconn.PgError) *mvcc.Error {
	class := classOf(e.Code)
	switch e.Code {
	case "42P01", "3F000":
		return mvcc.Errorf(class, "the database does not hold the tables of a rowkeeper store "+
			"where this role's search_path leads: run `rowkeeper migrate up` (%w)", e)
	case "42501":
		return mvcc.Errorf(class, "the database role lacks a privilege: grant SELECT, INSERT, "+
			"UPDATE and DELETE on the tables rowkeeper_* (%w)", e)
	case "25006":
		return mvcc.Errorf(class, "the PostgreSQL server is read-only, a standby or set so (%w)", e)
	case "53100":
		return mvcc.Errorf(class, "the PostgreSQL server has no space left (%w)", e)
	case "53300":
		return mvcc.Errorf(class, "PostgreSQL has no connection left for this role: raise "+
			"max_connections, or the CONNECTION LIMIT of the role or the database, or lower "+
			"pool_max_conns in the database URL (%w)", e)
	case "55P03":
		return mvcc.Errorf(class, "the commit lock, or another lock in PostgreSQL, was not free "+
			"in time (%w)", e)
	case "26000", "42P05":
		return mvcc.Errorf(class, "a pooler between this process and PostgreSQL gives each "+
			"transaction another session: add prepared_statements=false to the database URL (%w)",
			e)
	}
	return mvcc.Errorf(class, "PostgreSQL: %w", e)
}

// readError says what a failed read means. Nothing was changed, whatever it was.
func readError(err error) error {
	var known *mvcc.Error
	var e *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return err
	case errors.As(err, &e):
		return statementError(e)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return mvcc.Errorf(mvcc.Unavailable, "PostgreSQL did not answer in time: %w", err)
	}
	return mvcc.Errorf(mvcc.Unavailable, "the connection to PostgreSQL was lost: %w", err)
}

// connectError says in one sentence why there is no connection.
func (c *config) connectError(err error) error {
	var known *mvcc.Error
	if errors.As(err, &known) {
		return err
	}
	cc := c.pool.ConnConfig
	denied := func(format string, args ...any) error {
		return &mvcc.Error{Class: mvcc.Denied, Err: fmt.Errorf(format, args...)}
	}
	var (
		e           *pgconn.PgError
		expired     x509.CertificateInvalidError
		hostname    x509.HostnameError
		authority   x509.UnknownAuthorityError
		certificate *tls.CertificateVerificationError
		lookup      *net.DNSError
	)
	switch {
	case errors.As(err, &e):
		switch {
		case strings.HasPrefix(e.Code, "28"):
			return denied("PostgreSQL at %s refuses the login of the role %q: check the password "+
				"(in the database URL, PGPASSWORD or password_file) and pg_hba.conf (%w)",
				c.where(), cc.User, e)
		case e.Code == "3D000":
			return denied("PostgreSQL at %s has no database %q: create it, or correct the "+
				"database URL (%w)", c.where(), cc.Database, e)
		case e.Code == "42501" && strings.Contains(err.Error(), "failed to connect"):
			return denied("the role %q may not connect to the database %q at %s: grant it "+
				"CONNECT (%w)", cc.User, cc.Database, c.where(), e)
		case e.Code == "08P01" && strings.Contains(e.Message, "startup parameter"):
			return denied("a pooler at %s does not pass on a setting that the database URL "+
				"makes: make it by ALTER ROLE instead (%w)", c.where(), e)
		case e.Code == "42704", e.Code == "22023":
			return denied("PostgreSQL at %s does not know a setting that the database URL makes: "+
				"correct its parameters (%w)", c.where(), e)
		}
		return statementError(e)
	case errors.Is(err, pgconn.ErrReadOnlyConnection), errors.Is(err, pgconn.ErrStandbyConnection):
		return mvcc.Errorf(mvcc.ReadOnly, "none of the PostgreSQL servers at %s takes writes: "+
			"they are standbys or read-only", c.where())
	case errors.As(err, &expired) && expired.Reason == x509.Expired:
		return denied("the certificate of PostgreSQL at %s has expired or is not valid yet: "+
			"renew it, or correct the clock (%w)", c.where(), expired)
	case errors.As(err, &hostname):
		return denied("the certificate of PostgreSQL at %s is for another host name: correct the "+
			"host in the database URL, or the certificate (%w)", c.where(), hostname)
	case errors.As(err, &authority):
		return denied("the certificate of PostgreSQL at %s is signed by an authority that is not "+
			"trusted: name it in sslrootcert (%w)", c.where(), authority)
	case errors.As(err, &certificate):
		return denied("the certificate of PostgreSQL at %s does not hold: %w", c.where(),
			certificate.Err)
	case errors.As(err, &lookup):
		return mvcc.Errorf(mvcc.Unavailable, "the host of PostgreSQL cannot be found: check the "+
			"host in the database URL (%w)", lookup)
	case errors.Is(err, syscall.ECONNREFUSED):
		return mvcc.Errorf(mvcc.Unavailable, "nothing answers at %s: check that PostgreSQL runs, "+
			"and the host and port in the database URL (%w)", c.where(), syscall.ECONNREFUSED)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return mvcc.Errorf(mvcc.Unavailable, "PostgreSQL at %s did not take a connection in "+
			"time: %w", c.where(), oneLine{err})
	}
	var attempts *pgconn.ConnectError
	if errors.As(err, &attempts) {
		err = attempts.Unwrap()
	}
	return mvcc.Errorf(mvcc.Unavailable, "cannot connect to PostgreSQL at %s: %w", c.where(),
		oneLine{err})
}

// oneLine is an error on one line: attempts at several hosts are reported on several.
type oneLine struct{ error }

func (e oneLine) Error() string {
	return strings.Join(strings.Fields(strings.ReplaceAll(e.error.Error(), "\n", "; ")), " ")
}

func (e oneLine) Unwrap() error { return e.error }
