package mysql

import (
	"context"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// Connect connects to the database and checks that it has a schema that this program can use. It
// changes nothing, and needs no more than SELECT, INSERT, UPDATE and DELETE on the database. Its
// error is one sentence that names what to do.
func (opener) Connect(ctx context.Context, url string,
	opts contract.DriverOptions) (contract.Database, error) {
	s, err := newServer(url, opts)
	if err != nil {
		return nil, err
	}
	d := newDatabase(s, opts.Timeout)
	if err := d.open(ctx); err != nil {
		if closeErr := d.Close(); closeErr != nil {
			opts.Logger.Debug("closing connections", "err", closeErr)
		}
		return nil, err
	}
	return d, nil
}

// open makes the first connection, by which it finds out what can be stored.
func (d *database) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	c, err := d.reads.Conn(ctx)
	if err != nil {
		return d.failed("open the database", err)
	}
	f, err := factsOf(c)
	// It may be the only connection of the pool.
	if closeErr := c.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return d.failed("open the database", err)
	}
	if d.limits, err = limitsFor(f.maxPacket); err != nil {
		return err
	}
	d.server.minPacket.Store(int64(packetFor(d.limits.GroupBytes)))
	d.galera, d.tidb = f.galera, f.tidb
	if err := migrations.MySQL.Check(ctx, d.reads); err != nil {
		return d.failed("check the schema", err)
	}
	return nil
}

// Store implements [contract.Database].
func (d *database) Store(ctx context.Context, name string) (contract.Backend, error) {
	const what = "find the store"
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	// A store that has seen nothing yet has nothing to compare a database with but what it finds
	// now, so that comes from a connection that is begun now. Those of the pools may lead to where
	// the address led long ago.
	db := d.server.pool(connector{server: d.server, once: true}, 1)
	defer db.Close()
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, d.failed(what, err)
	}
	defer c.Close()
	b := &backend{database: d}
	b.Member = sqlkit.NewMember(&d.server.address, b.row)
	if err := b.find(ctx, c, name); err != nil {
		return nil, d.failed(what, err)
	}
	reads := readsOf(b.store, d.tidb)
	b.KeysReader.Reader = sqlkit.NewReader(b, &reads, d.readTurns, d.tailTurns)
	d.holders.Hold()
	return b, nil
}
