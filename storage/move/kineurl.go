package move

import (
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

// kineDatabase is the name of the database where the URL names none.
const kineDatabase = "kubernetes"

// openKine opens the database that a URL names. No error repeats the URL: it may hold a password.
func openKine(address string, config *tls.Config) (*kine, error) {
	k := &kine{patience: kinePatience}
	scheme, rest, found := strings.Cut(address, ":")
	if !found {
		return nil, errors.New("the URL of kine's database has no scheme: begin it with " +
			"sqlite:, postgres: or mysql: and the rest")
	}
	var err error
	switch scheme {
	case "sqlite", "sqlite3":
		k.d = onSQLite
		k.db, k.name, err = openSQLite(rest)
	case "postgres", "postgresql":
		k.d = onPostgres
		k.db, k.name, err = openPostgres(address, config)
	case "mysql":
		k.d = onMySQL
		k.db, k.name, err = openMySQL(strings.TrimPrefix(rest, "//"), config)
	default:
		err = fmt.Errorf("kine's tables cannot be read from %s: begin the URL with sqlite:, "+
			"postgres: or mysql: and the rest", scheme)
	}
	if err != nil {
		return nil, err
	}
	return k, nil
}

func openSQLite(rest string) (*sql.DB, string, error) {
	name, err := filepath.Abs(fileName(rest))
	if err == nil {
		_, err = os.Stat(name) // to open a file would make it
	}
	if err != nil {
		return nil, "", fmt.Errorf("cannot open kine's database: %w", err)
	}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: name,
		RawQuery: "mode=rw&_pragma=busy_timeout(30000)&_pragma=synchronous(FULL)"}).String())
	return db, "sqlite:" + name, err
}

func openPostgres(address string, config *tls.Config) (*sql.DB, string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, "", errors.New("the URL of kine's database cannot be parsed: it is of the form " +
			"postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full, where special characters " +
			"of the password are percent-encoded")
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/" + kineDatabase
	}
	u.Path = strings.ToLower(u.Path) // as kine does
	c, err := pgx.ParseConfig(u.String())
	if err != nil {
		return nil, "", errors.New("the URL of kine's database has a parameter that PostgreSQL's " +
			"clients do not know, or that is wrong: see its part after the question mark")
	}
	if config != nil {
		c.TLSConfig = config.Clone()
		c.TLSConfig.ServerName = c.Host
		c.Fallbacks = nil
	}
	return stdlib.OpenDB(*c), fmt.Sprintf("postgres://%s:%d/%s", c.Host, c.Port, c.Database), nil
}

// tlsName is the name under which the MySQL driver knows a configuration of TLS.
const tlsName = "rowkeeper-move"

func openMySQL(dsn string, config *tls.Config) (*sql.DB, string, error) {
	wrong := errors.New("the URL of kine's database is of the form " +
		"mysql://USER:PASSWORD@tcp(HOST:PORT)/DATABASE, as in kine's --endpoint")
	var own *url.Userinfo
	if !strings.Contains(dsn, "(") { // as Rowkeeper's own
		u, err := url.Parse("mysql://" + dsn)
		if err != nil || u.Host == "" {
			return nil, "", wrong
		}
		host := u.Host
		if u.Port() == "" {
			host += ":3306"
		}
		own = u.User
		dsn = fmt.Sprintf("tcp(%s)/%s?%s", host, strings.TrimPrefix(u.Path, "/"), u.RawQuery)
	}
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, "", wrong
	}
	if own != nil {
		c.User = own.Username()
		c.Passwd, _ = own.Password()
	}
	if c.DBName == "" {
		c.DBName = kineDatabase
	}
	if config != nil {
		if err := mysql.RegisterTLSConfig(tlsName, config); err != nil {
			return nil, "", err
		}
		c.TLSConfig = tlsName
	}
	c.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, "", wrong
	}
	return sql.OpenDB(connector), fmt.Sprintf("mysql://%s/%s", c.Addr, c.DBName), nil
}
