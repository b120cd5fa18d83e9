package sqlite

import (
	"context"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

// Now implements [contract.Poller].
func (b *backend) Now() time.Time { return b.now() }

// Changed implements [contract.Poller]. It asks a connection that never writes, so that writes of
// this process's other connection count, too: to be told of them costs the tailer a read and no
// more.
func (b *backend) Changed(ctx context.Context) (changed bool, err error) {
	if b.cfg.memory() {
		return false, nil
	}
	err = b.read(ctx, b.polls, func(_ context.Context, c *sqlite3.Conn) error {
		s, err := c.Prepare(dataVersion)
		if err != nil {
			return err
		}
		version := b.lastVersion
		_, err = s.Row(func() { b.lastVersion = s.ColInt(0) })
		changed = version != b.lastVersion
		return err
	})
	return changed || err != nil, err
}
