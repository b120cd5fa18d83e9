package mysql

import (
	"context"
	"crypto/x509"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// undone are the server's errors after which a transaction certainly is not committed, whichever of
// its statements failed, COMMIT included, and what they mean. All others leave the outcome open if
// COMMIT may have been reached, and on Galera all do; see failedCommit.
var undone = map[uint16]contract.Class{
	1205: contract.Transient, // lock wait timeout
	1213: contract.Transient, // deadlock; in a cluster also: another node has committed the same row
	1614: contract.Transient, // XA_RBDEADLOCK
	1020: contract.Transient, // record has changed since last read
	1062: contract.Transient, // duplicate key: the second safeguard of the one history
	1412: contract.Transient, // table definition has changed
	3058: contract.Transient, // deadlock of a lock by name
	1615: contract.Transient, // prepared statement needs to be re-prepared
	3101: contract.Transient, // group replication has rolled it back
	3572: contract.Transient, // lock not available immediately

	// Those of TiDB. Where it does not know the outcome, it closes the connection without an
	// answer.
	8002: contract.Transient, // the transaction was not repeated
	8005: contract.Transient, // write conflict
	8022: contract.Transient, // the commit failed, and may be repeated
	8027: contract.Transient, // the server does not know the newest schema
	8028: contract.Transient, // the schema has changed
	9007: contract.Transient, // write conflict

	1036: contract.ReadOnly, // the table is, with innodb_force_recovery
	1290: contract.ReadOnly, // --read-only, --super-read-only; see option
	1874: contract.ReadOnly, // InnoDB is read-only
	1792: contract.ReadOnly, // read-only transaction
	1836: contract.ReadOnly, // read-only mode
	3100: contract.ReadOnly, // group replication refuses to commit
	1047: contract.ReadOnly, // Galera: the node is not ready

	1021: contract.Full, // disk full
	1114: contract.Full, // table full

	1142: contract.Denied, // command denied
	1143: contract.Denied, // column denied
	1227: contract.Denied, // a privilege is missing
	1410: contract.Denied, // not allowed to create a user

	1146: contract.Invalid, // no such table
	1054: contract.Invalid, // no such column
	1064: contract.Invalid, // syntax
	1071: contract.Invalid, // key too long
	1665: contract.Invalid, // binlog_format=STATEMENT
	1193: contract.Invalid, // no such variable
	1194: contract.Invalid, // table damaged
	1712: contract.Invalid, // index damaged
	1812: contract.Invalid, // the table's file is missing
	1814: contract.Invalid, // the table's file was discarded
	1932: contract.Invalid, // the table's file is missing, MariaDB
	3098: contract.Invalid, // group replication does not take the table
	3750: contract.Invalid, // table without a primary key

	1118: contract.Data, // row too large
	8004: contract.Data, // transaction too large, TiDB
	8025: contract.Data, // row too large, TiDB
	1153: contract.Data, // packet too large
	1197: contract.Data, // more than max_binlog_cache_size
	1264: contract.Data, // out of range
	1300: contract.Data, // invalid character string
	1366: contract.Data, // incorrect value
	1406: contract.Data, // data too long
	3819: contract.Data, // a constraint that somebody added
	4025: contract.Data, // the same, MariaDB
}

// opening are the errors of a connection that is being opened, and what they mean there. In answer
// to COMMIT they are the word of a proxy that has lost the connection behind it and looks for
// another one, perhaps after the commit; so they are not among undone.
var opening = map[uint16]contract.Class{
	1044: contract.Denied, // access to the database denied
	1045: contract.Denied, // access denied
	1049: contract.Denied, // unknown database
	1130: contract.Denied, // host not allowed
	1698: contract.Denied, // access denied, socket authentication
	1820: contract.Denied, // password must be changed
	1862: contract.Denied, // password has expired
	3118: contract.Denied, // account locked
	3159: contract.Denied, // encryption required
	4151: contract.Denied, // account locked, MariaDB

	1040: contract.Unavailable, // too many connections
	1129: contract.Unavailable, // host blocked
	1203: contract.Unavailable, // too many connections of this user
	1226: contract.Unavailable, // resource limit of this user
}

// classOf says what an error of the server means; otherwise is for those after which a transaction
// may have been committed.
func classOf(e *mysql.MySQLError, otherwise contract.Class) contract.Class {
	if otherOption(e) {
		return contract.Invalid
	}
	if class, ok := undone[e.Number]; ok {
		return class
	}
	if otherwise == contract.Unknown {
		return otherwise
	}
	if class, ok := opening[e.Number]; ok {
		return class
	}
	if e.Number == 1105 && e.Message == "lock wait timeout" {
		return contract.Transient // 1205 in TiDB's other words; no COMMIT waits for a lock
	}
	if fileErrors[e.Number] && noSpace.MatchString(e.Message) {
		return contract.Full
	}
	return otherwise
}

// otherOption tells whether an option of the server prevents a statement, other than those by which
// it is read-only. The text names it in every language.
func otherOption(e *mysql.MySQLError) bool {
	return e.Number == 1290 && e.Message != "" && !strings.Contains(e.Message, "--read-only") &&
		!strings.Contains(e.Message, "--super-read-only")
}

// fileErrors quote the errno of a file: of the storage engine, or of a log. noSpace finds those of
// a full disk and of a quota that is exceeded, also where the text is in another language.
var (
	fileErrors = map[uint16]bool{3: true, 1026: true, 1030: true}
	noSpace    = regexp.MustCompile(`\b(28|122)\b`)
)

// advice says what to do about the server's errors that a person has to mend.
var advice = map[uint16]string{
	1036: "the server is read-only: end innodb_force_recovery and innodb_read_only, or point the " +
		"URL to the primary",
	1197: "the value does not fit into the server's max_binlog_cache_size: raise it",
	1290: "the server is read-only: if it is a replica, point the URL to the primary; else SET GLOBAL " +
		"read_only = OFF",
	1874: "the server is read-only: end innodb_force_recovery and innodb_read_only, or point the " +
		"URL to the primary",
	1836: "the server is read-only: if it is a replica, point the URL to the primary; else SET GLOBAL " +
		"read_only = OFF",
	1047: "the Galera node is not ready: it is not connected to its cluster, or has no quorum",
	1021: "the server's disk is full: make room there",
	1114: "the server's disk or tablespace is full: make room there",
	1129: "the server has blocked this host after connections that failed: mend their cause, and " +
		"run FLUSH HOSTS (in MySQL 8.4 and later TRUNCATE TABLE performance_schema.host_cache)",
	1203: "the account has as many connections as it may: raise max_user_connections, or lower " +
		"pool_max_conns; a process uses up to 17 connections besides",
	1226: "the account has used up what it may: raise its limits by ALTER USER … WITH, or " +
		"max_user_connections",
	1227: "the account lacks a privilege that the error names: grant it",
	1040: "the server has too many connections: raise max_connections, or lower pool_max_conns; a " +
		"process uses up to 17 connections besides",
	1049: "the database does not exist: create it, or correct the URL",
	1044: "the account has no privileges on the database: grant them, or correct the URL",
	1045: "access denied: check the user name and the password (in the URL, in password_file, or " +
		"in MYSQL_PWD), and that the account is for connections from this host; set tls=true if the " +
		"account or the server requires TLS",
	1698: "access denied: the account authenticates by its socket; give it a password, or " +
		"another account",
	1130: "the server has no account for connections from this host: create one for it, such as " +
		"'user'@'%'",
	1142: "the account lacks a privilege: it needs SELECT, INSERT, UPDATE and DELETE on the " +
		"database, for migrations also CREATE, ALTER, INDEX, DROP and CREATE VIEW",
	1820: "the account's password has expired: set one by ALTER USER … IDENTIFIED BY",
	1862: "the account's password has expired: set one by ALTER USER … IDENTIFIED BY",
	3118: "the account is locked: unlock it by ALTER USER … ACCOUNT UNLOCK",
	3159: "the server requires an encrypted connection: set tls=true in the URL",
	4151: "the account is locked: unlock it by ALTER USER … ACCOUNT UNLOCK",
	1205: "a lock was not granted in time: another session holds it; SELECT * FROM " +
		"information_schema.innodb_trx ORDER BY trx_started shows which, and KILL ends it",
	1146: "the database holds no rowkeeper store: run `rowkeeper migrate up`",
	1071: "keys of 1,024 bytes do not fit: the server's innodb_page_size must be 8 KiB or more",
	1665: "InnoDB does not allow READ COMMITTED with binlog_format=STATEMENT: set binlog_format=ROW",
	1153: "the value does not fit into the server's max_allowed_packet",
	1712: "an index is damaged: see the server's log, and restore a backup into a new database",
	1812: "a table's file is missing: see the server's log, and restore a backup into a new database",
	1814: "a table's file was discarded: import it, or restore a backup into a new database",
	1932: "a table's file is missing: see the server's log, and restore a backup into a new database",
	1969: "the server's max_statement_time ended the statement",
	3024: "the server's max_execution_time ended the statement",
}

// sentence describes one of the server's errors.
func sentence(e *mysql.MySQLError) error {
	text, ok := advice[e.Number]
	switch {
	case otherOption(e):
		return fmt.Errorf("an option of the server prevents the statement: change it (%w)", e)
	case e.Number == 1142 || e.Number == 1143:
		return fmt.Errorf("%s (%w)%.0w", advice[1142], e, contract.ErrPrivilege)
	case ok:
		return fmt.Errorf("%s (%w)", text, e)
	}
	return e
}

// loginRefused tells whether the server has refused the user or the password.
func loginRefused(e *mysql.MySQLError) bool {
	return e.Number == 1045 || e.Number == 1698 || e.Number == 1820 || e.Number == 1862
}

// connectError judges an error of opening a connection as a user: nothing was sent that could
// change anything.
func (c *config) connectError(user string, err error) *contract.Error {
	var (
		server    *mysql.MySQLError
		expired   x509.CertificateInvalidError
		hostname  x509.HostnameError
		authority x509.UnknownAuthorityError
		dns       *net.DNSError
		op        *net.OpError
	)
	switch {
	case errors.As(err, &server):
		return contract.Errorf(classOf(server, contract.Unavailable), "cannot connect to %s as %s: %w", c, user, sentence(server))
	case errors.As(err, &expired) && expired.Reason == x509.Expired:
		return contract.Errorf(contract.Denied, "cannot connect to %s: the server's certificate is not "+
			"valid now, it is valid from %s to %s: renew it, or correct the clock", c,
			expired.Cert.NotBefore.UTC().Format(time.DateTime),
			expired.Cert.NotAfter.UTC().Format(time.DateTime))
	case errors.As(err, &expired):
		return contract.Errorf(contract.Denied, "cannot connect to %s: the server's certificate does not "+
			"hold: %w", c, expired)
	case errors.As(err, &hostname):
		return contract.Errorf(contract.Denied, "cannot connect to %s: the server's certificate is for "+
			"another host: correct the host in the URL, or the certificate, or name the authority by "+
			"ssl-ca and set tls=verify-ca: %w", c, hostname)
	case errors.As(err, &authority):
		return contract.Errorf(contract.Denied,
			"cannot connect to %s: the server's certificate is signed by nobody that this "+
				"program trusts: name the authority by ssl-ca", c)
	case errors.As(err, &op) && op.Op == "remote error": // a TLS alert
		return contract.Errorf(contract.Denied, "cannot connect to %s: the server refused the TLS "+
			"connection (%w): check ssl-cert and ssl-key", c, op.Err)
	case errors.Is(err, mysql.ErrNoTLS):
		return contract.Errorf(contract.Denied, "cannot connect to %s: the server offers no TLS: enable "+
			"it there, or set tls=false in the URL", c)
	case errors.Is(err, mysql.ErrCleartextPassword):
		return contract.Errorf(contract.Denied, "cannot connect to %s as %s: the account asks for the "+
			"password in clear text, which only the password of a login program is sent in, with "+
			"tls=true or tls=verify-ca; use caching_sha2_password, ed25519 or "+
			"mysql_native_password", c, user)
	case errors.Is(err, mysql.ErrNativePassword),
		errors.Is(err, mysql.ErrOldPassword), errors.Is(err, mysql.ErrUnknownPlugin):
		return contract.Errorf(contract.Denied,
			"cannot connect to %s as %s: the account uses a method of authentication that is not "+
				"supported; use caching_sha2_password, ed25519 or mysql_native_password", c, user)
	case errors.As(err, &dns):
		return contract.Errorf(contract.Unavailable, "cannot connect to %s: the host name does not "+
			"resolve: %w", c, dns)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &op) && op.Timeout():
		return contract.Errorf(contract.Unavailable, "cannot connect to %s: no answer in time", c)
	case errors.As(err, &op) && op.Op != "dial" && c.tlsCert != "":
		// A server that refuses the certificate says why and closes the connection. A client that
		// is writing may see the latter only.
		return contract.Errorf(contract.Unavailable, "cannot connect to %s: %w: if it goes on, check "+
			"ssl-cert and ssl-key", c, op.Err)
	case errors.Is(err, syscall.ECONNREFUSED), c.network == "unix" && errors.Is(err, syscall.ENOENT):
		where := "host and port"
		if c.network == "unix" {
			where = "socket"
		}
		return contract.Errorf(contract.Unavailable, "nothing answers at %s: check that MySQL or "+
			"MariaDB runs, and the %s in the database URL (%w)", c.addr, where, op.Err)
	case errors.As(err, &op):
		return contract.Errorf(contract.Unavailable, "cannot connect to %s: %w", c, op.Err)
	case errors.Is(err, mysql.ErrInvalidConn) && c.tlsCert != "":
		return contract.Errorf(contract.Denied,
			"cannot connect to %s: the connection was closed before the server had let it in: "+
				"check ssl-cert and ssl-key", c)
	case errors.Is(err, driver.ErrBadConn) && c.tlsCert != "":
		return contract.Errorf(contract.Unavailable,
			"cannot connect to %s: the connection was closed before the server had let it in: if "+
				"it goes on, check ssl-cert and ssl-key", c)
	case errors.Is(err, mysql.ErrInvalidConn), errors.Is(err, driver.ErrBadConn):
		return contract.Errorf(contract.Unavailable, "cannot connect to %s: the connection was closed "+
			"before the server had let it in", c)
	case c.tlsCert != "":
		// The same, in the driver's words.
		return contract.Errorf(contract.Unavailable, "cannot connect to %s: %w: if it goes on, check "+
			"ssl-cert and ssl-key", c, err)
	default:
		return contract.Errorf(contract.Unavailable, "cannot connect to %s: %w", c, err)
	}
}

// failed judges an error of a statement that cannot have committed anything, or that may be
// repeated whatever it did.
func (d *database) failed(what string, err error) *contract.Error {
	return d.judge(what, err, contract.Unavailable)
}

// failedCommit judges an error of the text that ends with COMMIT.
func (d *database) failedCommit(what string, err error) *contract.Error {
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrPktTooLarge) {
		// The driver's promise: nothing was sent. The server rolls back when it finds the
		// connection closed.
		return d.failed(what, err)
	}
	known := d.judge(what, err, contract.Unknown)
	if d.galera && known.Class != contract.Unknown {
		// A node has been seen (10.11) to answer COMMIT with a deadlock (1213) and then to commit
		// nevertheless: it had certified the transaction, rolled it back for an earlier one of
		// another node, and replayed it.
		return &contract.Error{Class: contract.Unknown, Err: known.Err}
	}
	return known
}

// judge translates an error; otherwise is the class of those after which a transaction may have
// been committed.
func (d *database) judge(what string, err error, otherwise contract.Class) *contract.Error {
	var (
		known   *contract.Error
		server  *mysql.MySQLError
		version *migrations.VersionError
	)
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &version):
		return &contract.Error{Class: contract.Invalid, Err: err}
	case errors.Is(err, mysql.ErrPktTooLarge):
		return contract.Errorf(contract.Data, "cannot %s: %w", what, err)
	case errors.As(err, &server):
		return contract.Errorf(classOf(server, otherwise), "cannot %s: %w", what, sentence(server))
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, mysql.ErrInvalidConn):
		// The driver's own words, such as "driver: bad connection", say no more than this: %.0w
		// wraps its error without them.
		return contract.Errorf(otherwise, "cannot %s: the connection to %s was lost%.0w", what,
			d.server.cfg, err)
	default:
		return contract.Errorf(otherwise, "cannot %s: %w", what, err)
	}
}

// driverLog takes what the driver writes when a connection breaks. The driver keeps the reason to
// its log.
type driverLog struct {
	log *slog.Logger

	mu   sync.Mutex
	last error
}

func (l *driverLog) Print(v ...any) {
	l.log.Debug("mysql driver: " + strings.TrimSpace(fmt.Sprint(v...)))
	for _, v := range v {
		if err, ok := v.(error); ok {
			l.mu.Lock()
			l.last = err
			l.mu.Unlock()
		}
	}
}

// explain adds the reason to an error that says only that the connection broke.
func (l *driverLog) explain(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil || !errors.Is(err, mysql.ErrInvalidConn) {
		return err
	}
	return fmt.Errorf("%w: %w", err, l.last)
}
