package target

import (
	"context"
	"fmt"
	"path/filepath"
	"syscall"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// TiDB is run only if it is named, with a program that hack/testbed/tidb.sh has built.
var TiDB = Target{"rowkeeper", "tidb", serveTiDB, dialRowkeeper}

// tidbServer is one TiDB server that keeps its data by itself, without TiKV.
type tidbServer struct{ *mysqlServer }

func serveTiDB(ctx context.Context, dir string, p Programs) (Server, error) {
	port, err := programs.FreePort()
	if err != nil {
		return nil, err
	}
	if dir, err = mkdir(dir, "tidb"); err != nil {
		return nil, err
	}
	s := &mysqlServer{port: port, Program: program(dir, syscall.SIGTERM, p.TiDB,
		"-store", "unistore", "-path", filepath.Join(dir, "data"), "-host", "127.0.0.1",
		"-P", fmt.Sprint(port), "-status", "0", "-report-status=false", "-temp-dir", dir,
		"-socket", filepath.Join(dir, "socket"), "-log-file", filepath.Join(dir, "log"),
		"-log-slow-query", filepath.Join(dir, "slow.log"))}
	return tidbServer{s}, s.beginFresh(ctx)
}

func (s tidbServer) Settings(ctx context.Context) ([]string, error) {
	db, err := s.open("root", "", "")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	var version string
	err = db.QueryRowContext(ctx, "SELECT version()").Scan(&version)
	return []string{version + ": unistore, which synchronizes no commit"}, err
}

// Settle has nothing to wait for: rows are removed by the server when it likes.
func (s tidbServer) Settle(context.Context) error { return nil }
