package target

import (
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// startTimeout bounds how long a server may take to answer.
const startTimeout = 2 * time.Minute

// Programs says where the server programs are.
type Programs struct {
	// Etcd and Kine are the programs that are built from the modules in peers, Rowkeeper that of
	// this one.
	Etcd, Kine, Rowkeeper string
	// Postgres is the directory of Postgres' programs. The others are the servers' programs. Empty:
	// not installed.
	Postgres, MariaDB, MariaDBInstall, MySQL, TiDB string
}

// FindPrograms looks for the database servers that are installed on this machine.
func FindPrograms() Programs {
	var p Programs
	if bin, err := programs.FindPostgres(); err == nil {
		p.Postgres = bin
	}
	if server, install, err := programs.FindMariaDB(); err == nil {
		p.MariaDB, p.MariaDBInstall = server, install
	}
	if server, err := programs.FindMySQL(); err == nil {
		p.MySQL = server
	}
	return p
}

// Missing says which program a target lacks, and is empty if it lacks none.
func (t Target) Missing(p Programs) string {
	switch {
	case t.Database == string(programs.Postgres) && p.Postgres == "":
		return "postgres"
	case t.Database == string(programs.MariaDB) && p.MariaDB == "":
		return "mariadbd and mariadb-install-db"
	case t.Database == string(programs.MySQL) && p.MySQL == "":
		return "mysqld (MySQL's own)"
	case t.Database == TiDB.Database && p.TiDB == "":
		return "a TiDB server, which -tidb names,"
	}
	return ""
}

// program is a server program that does not outlive this process.
func program(dir string, signal syscall.Signal, command ...string) *programs.Program {
	return &programs.Program{Dir: dir, Command: command, Signal: signal,
		Attributes: syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}}
}

// mkdir makes a subdirectory that other users may enter.
func mkdir(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	return path, os.Mkdir(path, 0o755)
}
