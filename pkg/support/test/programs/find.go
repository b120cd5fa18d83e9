package programs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// FindPostgres finds the directory of PostgreSQL's programs: that of postgres in PATH, else the
// newest that Debian's packages have installed.
func FindPostgres() (string, error) {
	if path, err := exec.LookPath("postgres"); err == nil {
		// Programs are found next to each other, not next to a link to one of them.
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path), nil
		}
	}
	dirs, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return "", err
	}
	slices.SortFunc(dirs, func(a, b string) int { return majorOf(b) - majorOf(a) })
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "postgres")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("no postgres in PATH or /usr/lib/postgresql/*/bin")
}

func majorOf(bin string) int {
	n, err := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
	if err != nil {
		return 0
	}
	return n
}

// FindMariaDB finds MariaDB's server, and the program that makes its data directory.
func FindMariaDB() (server, install string, err error) {
	if server, err = find("mariadbd"); err == nil {
		install, err = find("mariadb-install-db")
	}
	return server, install, err
}

// FindMySQL finds MySQL's server, unless mysqld is another name of MariaDB's.
func FindMySQL() (string, error) {
	server, err := find("mysqld")
	if err != nil {
		return "", err
	}
	version, err := exec.Command(server, "--no-defaults", "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", server, err)
	}
	if strings.Contains(string(version), "MariaDB") {
		return "", fmt.Errorf("%s is MariaDB's server", server)
	}
	return server, nil
}

// find finds a server program, also where only root's PATH has it.
func find(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	path := filepath.Join("/usr/sbin", name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("no %s in PATH or /usr/sbin", name)
	}
	return path, nil
}
