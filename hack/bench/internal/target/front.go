package target

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// frontOn serves etcd's API in front of a database: "rowkeeper etcd", for the same client as etcd.
func frontOn(onDatabase serve) serve {
	return func(ctx context.Context, dir string, p Programs) (Server, error) {
		database, err := onDatabase(ctx, dir, p)
		if err != nil {
			return nil, err
		}
		port, err := programs.FreePort()
		if err == nil {
			dir, err = mkdir(dir, "front")
		}
		if err != nil {
			return nil, errors.Join(err, database.Stop())
		}
		address := fmt.Sprintf("http://127.0.0.1:%d", port)
		f := &composed{
			Server:  database,
			address: address,
			behind:  database.Address(),
			about:   "rowkeeper etcd: one process in front of the database",
			front: program(dir, syscall.SIGTERM, p.Rowkeeper, "etcd",
				"--database="+database.Address(), "--listen-client-urls="+address),
		}
		if err := f.start(ctx); err != nil {
			return nil, errors.Join(err, f.Stop())
		}
		return f, nil
	}
}
