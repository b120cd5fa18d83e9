package sqlite

import (
	"fmt"
	"os"
	"slices"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

// maxReserve is the room on the file system that is kept from values. On a small file system it is
// an eighth.
//
// The sweep has to write before it can free anything: its own pages to the write-ahead log, and
// first what this holds already to the end of the file. Without the reserve, a full disk would stay
// full for ever. It has room for a group (8 MiB), for a log that is to be copied, with this group
// in it (16 MiB), and for the batches of the sweep.
const maxReserve = 32 << 20

// checkSpace refuses a group that adds values when no more than the reserve is left. Free pages of
// the file are room, too. Pages that are still in the write-ahead log only will need room in the
// file. Deletions, like compaction, may use the reserve. Where the system does not say how much is
// free, the disk itself refuses, and then only an administrator can make room.
func (b *backend) checkSpace(c *sqlite3.Conn, mutations []*contract.Mutation) error {
	if b.cfg.memory() || !slices.ContainsFunc(mutations, func(m *contract.Mutation) bool {
		return !m.Delete
	}) {
		return nil
	}
	free, total, err := space(b.cfg.path)
	reserve := min(maxReserve, total/8)
	if err != nil || free >= reserve {
		return nil
	}
	pages, unused, err := filePages(c)
	if err != nil {
		return err
	}
	used := (pages - unused) * pageSize
	file, err := os.Stat(b.cfg.path)
	if err != nil || free+file.Size()-used >= reserve {
		return nil
	}
	return full(b.name(), fmt.Errorf("the last %d KiB are reserved for compaction", reserve>>10))
}

// filePages reads from the header how many pages the file has, and how many of them are free.
func filePages(c *sqlite3.Conn) (pages, free int64, err error) {
	s, err := c.Prepare(selectPages)
	if err != nil {
		return 0, 0, err
	}
	_, err = s.Row(func() { pages, free = s.ColInt(0), s.ColInt(1) })
	return pages, free, err
}
