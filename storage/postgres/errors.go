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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// classes says what the server's errors mean for what was asked: the longest matching beginning of
// the SQLSTATE counts. All of them mean that the transaction was rolled back.
var classes = map[string]contract.Class{
	"":      contract.Unavailable,
	"08":    contract.Unavailable, // connection exceptions
	"0A":    contract.Invalid,     // a feature that the server does not have
	"22":    contract.Data,        // values that are not accepted
	"23":    contract.Data,        // constraints
	"23505": contract.Transient,   // the log's primary key: somebody wrote past the commit lock
	"25006": contract.ReadOnly,    // read-only transaction: a standby, or set so
	"25P03": contract.Unavailable, // idle in transaction for too long
	"25P04": contract.Unavailable, // transaction timeout
	"26000": contract.Denied,      // prepared statement not there: a pooler
	"28":    contract.Denied,      // wrong password, or no entry in pg_hba.conf
	"3D000": contract.Denied,      // no such database
	"3F000": contract.Invalid,     // no such schema
	"40001": contract.Transient,   // serialization failure
	"40P01": contract.Transient,   // deadlock
	"42":    contract.Invalid,     // the tables are not those that this program knows
	"42501": contract.Denied,      // missing privilege
	"42704": contract.Denied,      // a setting in the URL that the server does not know
	"42P05": contract.Denied,      // prepared statement already there: a pooler
	"53":    contract.Unavailable, // too many connections, out of memory
	"53100": contract.Full,        // disk full
	"54":    contract.Data,        // program limits
	"54000": contract.Full,        // no transaction numbers left; see limits
	"55P03": contract.Transient,   // lock not available in time
	"57":    contract.Unavailable, // shutdown, crash, statement timeout
	"57P04": contract.Denied,      // the database was dropped
	"58":    contract.Unavailable, // system errors
	"XX001": contract.Invalid,     // data corrupted
	"XX002": contract.Invalid,     // index corrupted
}

func classOf(e *pgconn.PgError) contract.Class {
	switch {
	case e.Code == "42501" && onServerFile(e):
		return contract.Unavailable
	case e.Code == "XX000" && extends[e.Routine]:
		return contract.Full
	case e.Code == "54000" && limits[e.Routine]:
		return contract.Data
	}
	for end := len(e.Code); ; end-- {
		if class, ok := classes[e.Code[:end]]; ok {
			return class
		}
	}
}

// PostgreSQL makes a code of the errno of its own files, and some of these codes mean something
// else, too. Texts are in the language of the server, so the place in its source tells them apart.

// onServerFile tells whether the operating system has refused the server one of its own files, as
// it does when it has made the file system read-only after a fault. The code is that of a missing
// privilege of the role.
func onServerFile(e *pgconn.PgError) bool { return serverFiles[e.File] }

var serverFiles = map[string]bool{"md.c": true, "fd.c": true, "slru.c": true, "xlog.c": true,
	"copydir.c": true, "relmapper.c": true}

// extends are the routines that make a table's file longer. A disk quota that is exceeded has no
// code, unlike a full disk.
var extends = map[string]bool{"mdextend": true, "mdzeroextend": true}

// limits are the routines that refuse a row, or an entry of an index, for its size. What is written
// here is far smaller than they allow, but somebody may have added an index.
var limits = map[string]bool{"_bt_check_third_page": true, "index_form_tuple": true,
	"index_form_tuple_context": true, "RelationGetBufferForTuple": true}

// exhausts are the routines that give the numbers of transactions.
var exhausts = map[string]bool{"GetNewTransactionId": true, "GetNewMultiXactId": true}

// statementError says what an error of the server means, in one sentence.
func statementError(e *pgconn.PgError) *contract.Error {
	class := classOf(e)
	switch {
	case class == contract.Full && e.Code != "54000":
		return contract.Errorf(class, "the PostgreSQL server has no space left (%w)", e)
	case e.Code == "42501" && onServerFile(e):
		return contract.Errorf(class, "the PostgreSQL server cannot use its own files: look at its "+
			"log and at its disk, whose file system may have become read-only (%w)", e)
	case e.Code == "54000" && (e.Routine == "" || exhausts[e.Routine]):
		return contract.Errorf(class, "the PostgreSQL server gives no more transaction numbers, to "+
			"protect its data from their wraparound: end old transactions (see pg_prepared_xacts, "+
			"pg_stat_activity and pg_replication_slots) and VACUUM the database that it names (%w)", e)
	}
	switch e.Code {
	case "3F000":
		return contract.Errorf(class, "no schema that this role's search_path names exists and may be "+
			"used by the role: create one, or grant it USAGE and CREATE ON SCHEMA …, or correct "+
			"search_path in the database URL (%w)", e)
	case "42P01":
		return contract.Errorf(class, "the database does not hold the tables of a rowkeeper store "+
			"where this role's search_path leads: run `rowkeeper migrate up` (%w)", e)
	case "42501":
		return contract.Errorf(class, "the database role lacks a privilege: %s (%w)%.0w", missing(e),
			e, contract.ErrPrivilege)
	case "25006":
		return contract.Errorf(class, "the PostgreSQL server is read-only: if it is a standby, point "+
			"the database URL to the primary; else see default_transaction_read_only (SHOW it, and "+
			"RESET it by ALTER SYSTEM, ALTER DATABASE or ALTER ROLE) (%w)", e)
	case "53300":
		return contract.Errorf(class, "PostgreSQL has no connection left for this role: raise "+
			"max_connections, or the CONNECTION LIMIT of the role or the database, or lower "+
			"pool_max_conns in the database URL; a process uses up to 13 connections besides (%w)", e)
	case "55P03":
		return contract.Errorf(class, "the commit lock, or another lock in PostgreSQL, was not free "+
			"in time (%w)", e)
	case "26000", "42P05":
		return contract.Errorf(class, "a pooler between this process and PostgreSQL gives each "+
			"transaction another session: add prepared_statements=false to the database URL (%w)",
			e)
	}
	return contract.Errorf(class, "PostgreSQL: %w", e)
}

// missing says what to grant. If the server's language is another one, it says all of it.
func missing(e *pgconn.PgError) string {
	const (
		tables = "grant it SELECT, INSERT, UPDATE and DELETE on the tables rowkeeper_*"
		schema = "grant it USAGE on the schema, and for migrations CREATE (GRANT USAGE, CREATE ON " +
			"SCHEMA %s TO the role; since PostgreSQL 15 only the owner of the database may create " +
			"tables in public)"
		owner = "migrate with the role that owns the tables"
	)
	name, inSchema := strings.CutPrefix(e.Message, "permission denied for schema ")
	switch {
	case inSchema:
		return fmt.Sprintf(schema, pgx.Identifier{name}.Sanitize())
	case strings.HasPrefix(e.Message, "permission denied for language"):
		return "for migrations grant it USAGE ON LANGUAGE plpgsql"
	case strings.HasPrefix(e.Message, "permission denied for table"):
		return tables
	case strings.HasPrefix(e.Message, "must be owner"):
		return owner
	case strings.Contains(e.Message, "row-level security"):
		return "let it see and write all rows: ALTER ROLE the role BYPASSRLS, or ALTER TABLE … DISABLE " +
			"ROW LEVEL SECURITY"
	}
	return tables + "; " + fmt.Sprintf(schema, "public") + "; " + owner
}

// readError says what a failed read means. Nothing was changed, whatever it was.
func readError(err error) error {
	var known *contract.Error
	var e *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return err
	case errors.As(err, &e):
		return statementError(e)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return contract.Errorf(contract.Unavailable, "PostgreSQL did not answer in time: %w", err)
	}
	return contract.Errorf(contract.Unavailable, "the connection to PostgreSQL was lost: %w", err)
}

// connectError says in one sentence why there is no connection.
func (c *config) connectError(err error) error {
	var known *contract.Error
	if errors.As(err, &known) {
		return err
	}
	cc := &c.pool.ConnConfig.Config
	var refused *pgconn.ConnectError
	if errors.As(err, &refused) {
		cc = refused.Config // its user may be another one by now
	}
	denied := func(format string, args ...any) error {
		return &contract.Error{Class: contract.Denied, Err: fmt.Errorf(format, args...)}
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
		if strings.HasPrefix(e.Code, "28") {
			c.loginRefused(cc)
		}
		switch {
		case e.Code == "28000": // it has not asked for the password
			return denied("PostgreSQL at %s refuses the login of the role %q: see that the role "+
				"exists and may log in (ALTER ROLE … LOGIN), and that pg_hba.conf has a line for "+
				"it (%w)", c.where(), cc.User, e)
		case strings.HasPrefix(e.Code, "28"):
			return denied("PostgreSQL at %s refuses the login of the role %q: check the password "+
				"(in the database URL, PGPASSWORD or password_file), that the role exists and its "+
				"password has not expired (ALTER ROLE … VALID UNTIL), and pg_hba.conf (%w)",
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
		if e.Code == "57P03" {
			return contract.Errorf(contract.Unavailable, "PostgreSQL at %s takes no connections yet: %w (%w)",
				c.where(), contract.ErrStartingUp, e)
		}
		return statementError(e)
	case errors.Is(err, pgconn.ErrReadOnlyConnection), errors.Is(err, pgconn.ErrStandbyConnection):
		return contract.Errorf(contract.ReadOnly, "none of the PostgreSQL servers at %s takes writes: "+
			"they are standbys or read-only; name the primary, and see default_transaction_read_only "+
			"there", c.where())
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
		return contract.Errorf(contract.Unavailable, "the host of PostgreSQL cannot be found: check the "+
			"host in the database URL (%w)", lookup)
	case errors.Is(err, syscall.ECONNREFUSED):
		return contract.Errorf(contract.Unavailable, "nothing answers at %s: check that PostgreSQL runs, "+
			"and the host and port in the database URL (%w)", c.where(), syscall.ECONNREFUSED)
	case strings.Contains(err.Error(), "require_auth check failed"):
		return denied("PostgreSQL at %s asks for the password by a method that is not allowed, such as "+
			"in clear text without TLS: use scram-sha-256 there, or sslmode=verify-full (%w)",
			c.where(), oneLine{err})
	case strings.Contains(err.Error(), "server refused TLS connection"):
		return denied("PostgreSQL at %s offers no TLS: enable it there, or, if nobody else is on the way, "+
			"set sslmode=disable in the database URL (%w)", c.where(), oneLine{err})
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return contract.Errorf(contract.Unavailable, "PostgreSQL at %s did not take a connection in "+
			"time: %w", c.where(), oneLine{err})
	}
	var attempts *pgconn.ConnectError
	if errors.As(err, &attempts) {
		err = attempts.Unwrap()
	}
	return contract.Errorf(contract.Unavailable, "cannot connect to PostgreSQL at %s: %w", c.where(),
		oneLine{err})
}

// oneLine is an error on one line: attempts at several hosts are reported on several.
type oneLine struct{ error }

func (e oneLine) Error() string {
	return strings.Join(strings.Fields(strings.ReplaceAll(e.error.Error(), "\n", "; ")), " ")
}

func (e oneLine) Unwrap() error { return e.error }
