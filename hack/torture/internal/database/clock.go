package database

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/rows"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// Clocked is a database with clocks that can be wrong, as the statements of the servers read them.
// All else that the database does goes on by the machine's clock: a library that fakes the clock of
// a whole Galera node makes it fall out of its cluster.
type Clocked interface {
	// SetClock lets the clock of a node be wrong by some seconds. A database of one node has no
	// other. A node of the MySQL family that starts again is right.
	SetClock(ctx context.Context, node int, offset time.Duration) error
}

// skewed is a server with a clock that can be wrong.
type skewed struct {
	*Served
	kind programs.Kind
}

// NewSkewed starts a server that is [Clocked].
func NewSkewed(ctx context.Context, kind programs.Kind, servers int,
	opts dbserver.Options) (Database, error) {
	s, err := NewServed(ctx, kind, servers, opts)
	if err != nil {
		return nil, err
	}
	d := &skewed{s, kind}
	if kind == programs.Postgres {
		err = d.exec(ctx, postgresClock)
	} else {
		s.network.Rewrite(mysqlClock)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return d, nil
}

// URL implements Database. An encrypted connection cannot be rewritten.
func (d *skewed) URL(server int) string {
	if d.kind == programs.Postgres {
		return d.Served.URL(server)
	}
	url, _, _ := strings.Cut(d.Served.URL(server), "?")
	return url + "?tls=false"
}

// SetClock implements Clocked.
func (d *skewed) SetClock(ctx context.Context, _ int, offset time.Duration) error {
	if d.kind == programs.Postgres {
		return d.exec(ctx, fmt.Sprintf("UPDATE torture.clock SET wrong_by = '%d seconds'",
			int(offset.Seconds())))
	}
	return d.exec(ctx, setMySQLClock(offset))
}

func (d *skewed) exec(ctx context.Context, query string) error {
	db, err := rows.Open(d.Direct(), "", "default")
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, query)
	return err
}

// postgresClock puts a function before PostgreSQL's own of the same name.
const postgresClock = `
CREATE SCHEMA torture;
CREATE TABLE torture.clock (wrong_by interval NOT NULL);
INSERT INTO torture.clock VALUES ('0');
CREATE FUNCTION torture.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql AS
  'SELECT pg_catalog.clock_timestamp() + wrong_by FROM torture.clock';
ALTER DATABASE rowkeeper SET search_path = public, torture, pg_catalog`

// The offset of a clock of the MySQL family is in a variable that nothing else here needs, beyond
// its default.
const (
	clockVariable = "preload_buffer_size"
	rightClock    = 32768 // the same default in MySQL and MariaDB
)

func setMySQLClock(offset time.Duration) string {
	return fmt.Sprintf("SET GLOBAL %s = %d", clockVariable, rightClock+int(offset.Seconds()))
}

// mysqlClock adds the offset wherever a statement of a connection's client reads the clock.
func mysqlClock(from io.Reader) io.Reader { return &mysqlStatements{from: bufio.NewReader(from)} }

var (
	readsClock = []byte("UTC_TIMESTAMP(6)")
	readsWrong = fmt.Appendf(nil,
		"(UTC_TIMESTAMP(6) + INTERVAL CAST(@@GLOBAL.%s AS SIGNED) - %d SECOND)", clockVariable,
		rightClock)
)

// mysqlStatements reads packets of MySQL's protocol: three bytes of length, a number, the content.
type mysqlStatements struct {
	from *bufio.Reader
	// rest is what was not read yet of a packet.
	rest []byte
}

func (m *mysqlStatements) Read(p []byte) (int, error) {
	if len(m.rest) == 0 {
		var head [4]byte
		if _, err := io.ReadFull(m.from, head[:]); err != nil {
			return 0, err
		}
		body := make([]byte, int(head[0])|int(head[1])<<8|int(head[2])<<16)
		if _, err := io.ReadFull(m.from, body); err != nil {
			return 0, err
		}
		body = bytes.ReplaceAll(body, readsClock, readsWrong)
		n := len(body)
		m.rest = append([]byte{byte(n), byte(n >> 8), byte(n >> 16), head[3]}, body...)
	}
	n := copy(p, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}
