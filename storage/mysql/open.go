package mysql

import (
	"context"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlread"
)

// Open connects to the database and checks that it holds a store that this program can use. It
// changes nothing, and needs no more than SELECT, INSERT, UPDATE and DELETE on the database. Its
// error is one sentence that names what to do.
func (opener) Open(ctx context.Context, url string, opts mvcc.DriverOptions) (mvcc.Backend, error) {
	s, err := newServer(url, opts)
	if err != nil {
		return nil, err
	}
	b := newBackend(s, opts.Timeout)
	if err := b.open(ctx); err != nil {
		if closeErr := b.Close(); closeErr != nil {
			opts.Logger.Debug("closing connections", "err", closeErr)
		}
		return nil, err
	}
	return b, nil
}

// open makes the first connection, to which all others are compared.
func (b *backend) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	c, err := b.reads.Conn(ctx)
	if err != nil {
		return b.failed("open the database", err)
	}
	defer c.Close()
	var f facts
	if err := c.Raw(func(c any) error { f = c.(*conn).facts; return nil }); err != nil {
		return b.failed("open the database", err)
	}
	if b.limits, err = limitsFor(f.maxPacket); err != nil {
		return err
	}
	b.server.minPacket.Store(int64(packetFor(b.limits.GroupBytes)))
	b.galera = f.galera
	if err := migrations.MySQL.Check(ctx, b.reads); err != nil {
		return b.failed("check the schema", err)
	}
	if err := b.findStore(ctx, c); err != nil {
		return err
	}
	reads := readsOf(b.store)
	b.Reader = sqlread.NewReader(b, &reads, b.server.cfg.readConns)
	b.server.durability.Store(&f.durability)
	b.server.fingerprint.Store(&f.fingerprint)
	return nil
}
