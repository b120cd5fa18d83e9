package sqlite

import "context"

// Changed implements [mvcc.Poller]. It asks a connection that never writes, so that writes of this process's other connection
// count, too: to be told of them costs the tailer a read and no more.
func (b *backend) Changed(ctx context.Context) (changed bool, err error) {
	if b.cfg.memory() {
		return false, nil
	}
	err = b.read(ctx, b.polls, func(c *conn) error {
		s, err := c.prepare(dataVersion)
		if err != nil {
			return err
		}
		if _, err := s.step(); err != nil {
			return err
		}
		version := s.colInt(0)
		s.reset()
		changed = version != b.lastVersion
		b.lastVersion = version
		return nil
	})
	return changed || err != nil, err
}
