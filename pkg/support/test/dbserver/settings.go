package dbserver

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// The administrator of the servers that are started here. The password guards nothing but test
// data. It is a word that occurs nowhere else, so that tests can look for it where no password may
// be.
const (
	adminUser     = "rowkeeper"
	adminPassword = "letmein"
)

// postgresLocal prepares a cluster, and the command that serves it.
func postgresLocal(l *local, opts Options) (url, source string, err error) {
	bin, err := programs.FindPostgres()
	if err != nil {
		return "", "", err
	}
	if err := l.RunAs("postgres", "nobody"); err != nil {
		return "", "", err
	}
	password, err := l.Write("password", []byte(adminPassword))
	if err != nil {
		return "", "", err
	}
	data := filepath.Join(l.Dir, "data")
	if err := l.Run(filepath.Join(bin, "initdb"), "--pgdata="+data, "--username="+adminUser,
		"--pwfile="+password, "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C",
		"--no-sync"); err != nil {
		return "", "", err
	}
	settings, err := postgresSettings(opts, l.Write)
	if err != nil {
		return "", "", err
	}
	settings["listen_addresses"] = "127.0.0.1"
	settings["port"] = strconv.Itoa(l.port)
	settings["unix_socket_directories"] = ""
	l.Command = []string{filepath.Join(bin, "postgres"), "-D", data}
	for _, name := range sortedKeys(settings) {
		l.Command = append(l.Command, "-c", name+"="+settings[name])
	}
	l.Signal = syscall.SIGINT // "fast": cut the connections, then end in order
	return fmt.Sprintf("postgres://%s:%s@127.0.0.1:%d/postgres?sslmode=%s", adminUser,
		adminPassword, l.port, sslmode(opts)), bin, nil
}

func sslmode(opts Options) string {
	if opts.TLS != nil {
		return "require"
	}
	return "disable"
}

// writer puts a file where the server can read it, and returns its path.
type writer func(name string, data []byte) (path string, err error)

// postgresSettings are the server's settings.
func postgresSettings(opts Options, write writer) (map[string]string, error) {
	settings := map[string]string{
		"max_connections": "500",
		"shared_buffers":  "128MB",
		"log_timezone":    "UTC",
		"timezone":        "UTC",
	}
	if !opts.Durable {
		for name, value := range map[string]string{
			"fsync":              "off",
			"full_page_writes":   "off",
			"synchronous_commit": "off",
			"wal_level":          "minimal",
			"max_wal_senders":    "0",
			"max_wal_size":       "256MB",
		} {
			settings[name] = value
		}
	}
	if opts.TLS != nil {
		settings["ssl"] = "on"
		for name, data := range map[string][]byte{"ssl_ca_file": opts.TLS.CA,
			"ssl_cert_file": opts.TLS.Cert, "ssl_key_file": opts.TLS.Key} {
			path, err := write(name+".pem", data)
			if err != nil {
				return nil, err
			}
			settings[name] = path
		}
	}
	for name, value := range opts.Settings {
		settings[name] = value
	}
	return settings, nil
}

// mariadbLocal prepares a data directory, and the command that serves it.
func mariadbLocal(l *local, opts Options) (url, source string, err error) {
	server, install, err := programs.FindMariaDB()
	if err != nil {
		return "", "", err
	}
	if err := l.RunAs("mysql", "nobody"); err != nil {
		return "", "", err
	}
	if err := l.Run(install, "--no-defaults", "--datadir="+filepath.Join(l.Dir, "data"),
		"--auth-root-authentication-method=normal", "--skip-test-db",
		"--skip-name-resolve"); err != nil {
		return "", "", err
	}
	url, err = l.mysqlCommand(server, opts)
	return url, server, err
}

// mysqlLocal does the same for MySQL.
func mysqlLocal(l *local, opts Options) (url, source string, err error) {
	server, err := programs.FindMySQL()
	if err != nil {
		return "", "", err
	}
	if err := l.RunAs("mysql", "nobody"); err != nil {
		return "", "", err
	}
	if err := l.Run(server, "--no-defaults", "--initialize-insecure", "--datadir="+
		filepath.Join(l.Dir, "data")); err != nil {
		return "", "", err
	}
	url, err = l.mysqlCommand(server, opts)
	return url, server, err
}

// mysqlCommand makes the command of a server of the MySQL family, and the administrator's URL.
func (l *local) mysqlCommand(server string, opts Options) (string, error) {
	init, err := l.Write("init.sql",
		fmt.Appendf(nil,
			"CREATE USER IF NOT EXISTS '%[1]s'@'%%' IDENTIFIED BY '%[2]s';\nGRANT ALL ON *.* TO '%[1]s'@'%%' WITH GRANT OPTION;\n", adminUser, adminPassword))
	if err != nil {
		return "", err
	}
	settings, err := mysqlSettings(opts, strings.HasSuffix(server, "mysqld"), l.Write)
	if err != nil {
		return "", err
	}
	settings["datadir"] = filepath.Join(l.Dir, "data")
	settings["init-file"] = init
	settings["bind-address"] = "127.0.0.1"
	settings["port"] = strconv.Itoa(l.port)
	settings["socket"] = filepath.Join(l.Dir, "socket")
	settings["pid-file"] = filepath.Join(l.Dir, "server.pid")
	l.Command = []string{server, "--no-defaults"}
	for _, name := range sortedKeys(settings) {
		l.Command = append(l.Command, "--"+name+"="+settings[name])
	}
	l.Signal = syscall.SIGTERM
	return fmt.Sprintf("mysql://%s:%s@127.0.0.1:%d/", adminUser, adminPassword, l.port), nil
}

// mysqlSettings are the settings of a server of the MySQL family; proper tells whether it is
// MySQL's own.
func mysqlSettings(opts Options, proper bool, write writer) (map[string]string, error) {
	settings := map[string]string{
		"character-set-server":    "utf8mb4",
		"default-time-zone":       "+00:00",
		"innodb-buffer-pool-size": "256M",
		"max-connections":         "500",
		"performance-schema":      "OFF",
		"skip-name-resolve":       "ON",
	}
	if proper {
		settings["mysqlx"] = "OFF"
		settings["secure-file-priv"] = "NULL" // else a directory that only packages make
	} else {
		settings["innodb-log-file-size"] = "96M"
	}
	if !opts.Durable {
		settings["innodb-flush-log-at-trx-commit"] = "0"
		settings["innodb-doublewrite"] = "OFF"
		settings["sync-binlog"] = "0"
		if proper {
			settings["skip-log-bin"] = "ON"
			settings["innodb-flush-method"] = "nosync"
		} else {
			settings["debug-no-sync"] = "ON"
		}
	}
	if opts.TLS != nil {
		for name, data := range map[string][]byte{"ssl-ca": opts.TLS.CA, "ssl-cert": opts.TLS.Cert,
			"ssl-key": opts.TLS.Key} {
			path, err := write(name+".pem", data)
			if err != nil {
				return nil, err
			}
			settings[name] = path
		}
	}
	for name, value := range opts.Settings {
		settings[strings.ReplaceAll(name, "_", "-")] = value
	}
	return settings, nil
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
