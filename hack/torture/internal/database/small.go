package database

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// Small is a database on a file system of some bytes in memory.
type Small struct {
	Database
	dir string
}

// NewSmall makes a database on a small file system, which is mounted below a directory. That needs
// root's rights.
func NewSmall(ctx context.Context, kind programs.Kind, servers int, below string) (*Small, error) {
	megabytes := 400
	if kind == programs.SQLite {
		megabytes = 64
	}
	dir := filepath.Join(below, "small")
	if err := os.Mkdir(dir, 0o777); err != nil {
		return nil, err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0,
		fmt.Sprintf("size=%dm,mode=1777", megabytes)); err != nil {
		return nil, &Missing{fmt.Sprintf("a small file system cannot be mounted, which needs "+
			"root's rights: %v", err)}
	}
	if kind == programs.SQLite {
		return &Small{NewSQLite(dir), dir}, nil
	}
	served, err := NewServed(ctx, kind, servers, dbserver.Options{
		Dir:      dir,
		Settings: map[string]string{"max_wal_size": "64MB", "min_wal_size": "32MB"},
	})
	if err != nil {
		return nil, errors.Join(err, syscall.Unmount(dir, syscall.MNT_DETACH))
	}
	return &Small{served, dir}, nil
}

// Close unmounts the file system, too.
func (s *Small) Close() error {
	return errors.Join(s.Database.Close(), syscall.Unmount(s.dir, syscall.MNT_DETACH))
}

// Fill fills the file system until empty is called.
func (s *Small) Fill() (empty func() error, err error) {
	filler := filepath.Join(s.dir, "filler")
	f, err := os.Create(filler)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	full, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		first := sync.OnceFunc(func() { close(full) })
		zeros := make([]byte, 64<<10)
		for ctx.Err() == nil {
			// Space that the database gives back is taken, too.
			for err := error(nil); err == nil; {
				_, err = f.Write(zeros)
			}
			first()
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	<-full
	return func() error {
		cancel()
		<-done
		return errors.Join(f.Close(), os.Remove(filler))
	}, nil
}
