package postgres

import (
	"cmp"
	"log/slog"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// config is what the URL and the options say.
type config struct {
	url string
	// now, if not nil, returns the URL as it is now, for the user and the password.
	now     func() (string, error)
	log     *slog.Logger
	timeout time.Duration

	pool *pgxpool.Config
	// prepared is false if statements must not be prepared and sessions not be set up, since a
	// pooler gives each transaction another one.
	prepared bool
	// passwordFile, if not empty, is read for every new connection. With now, it is that of the URL
	// as it is then.
	passwordFile string
}

// defaultTimeout is for options that say none.
const defaultTimeout = 30 * time.Second

// parseURL reads the URL, and the files that it names. See the package documentation for its
// parameters.
func parseURL(url string, opts contract.DriverOptions) (*config, error) {
	c := &config{url: url, now: opts.URL, log: opts.Logger, timeout: cmp.Or(opts.Timeout, defaultTimeout),
		prepared: true}
	if misplaced(url) {
		return nil, contract.Errorf(contract.Denied, "the database URL has an @ after the host: write / "+
			"in a password as %%2F and @ as %%40, and other special characters as %%XX")
	}
	given, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, urlError(err)
	}
	pool, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, urlError(err)
	}
	secure(url, pool.ConnConfig)
	params := pool.ConnConfig.RuntimeParams
	if s, ok := params["prepared_statements"]; ok {
		delete(params, "prepared_statements")
		if c.prepared, err = strconv.ParseBool(s); err != nil {
			return nil, contract.Errorf(contract.Denied,
				"the database URL's parameter prepared_statements is neither true nor false")
		}
	}
	if file, ok := params["password_file"]; ok {
		delete(params, "password_file")
		c.passwordFile = file
		if pool.ConnConfig.Password, err = readPassword(file); err != nil {
			return nil, err
		}
	}
	if _, ok := given.RuntimeParams["pool_max_conns"]; !ok {
		pool.MaxConns = defaultReadConns
	}
	if len(hosts(pool.ConnConfig)) > 1 && pool.ConnConfig.ValidateConnect == nil {
		pool.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	if _, ok := params["application_name"]; !ok {
		params["application_name"] = "rowkeeper"
	}
	if !c.prepared {
		pool.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	c.pool = pool
	return c, nil
}

// misplaced tells whether a part of the URL that is shown to people may be a part of the password:
// with an unquoted slash in it, what follows is the name of the database.
func misplaced(url string) bool {
	_, rest, _ := strings.Cut(url, "://")
	_, path, _ := strings.Cut(rest, "/")
	path, _, _ = strings.Cut(path, "?")
	return strings.Contains(path, "@")
}

// defaultReadConns is how many connections read lists at the same time, unless the URL says
// otherwise.
const defaultReadConns = 8

func readPassword(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", contract.Errorf(contract.Denied, "the file with the database's password cannot be "+
			"read: %w", err)
	}
	return strings.TrimRight(string(data), "\r\n"), nil
}

// refresh reads anew what may have changed in files and in the environment since the URL was
// parsed: the user, the password, client certificates, certificate authorities. It is called for
// every new connection.
func (c *config) refresh(cc *pgx.ConnConfig) error {
	fresh, err := pgx.ParseConfig(c.url)
	if err != nil {
		return urlError(err)
	}
	secure(c.url, fresh)
	cc.Password, cc.TLSConfig, cc.Fallbacks = fresh.Password, fresh.TLSConfig, fresh.Fallbacks
	passwordFile := c.passwordFile
	if c.now != nil {
		now, err := c.urlNow()
		if err != nil {
			return err
		}
		cc.User, cc.Password = now.User, now.Password
		passwordFile = now.RuntimeParams["password_file"]
	}
	if passwordFile != "" {
		if cc.Password, err = readPassword(passwordFile); err != nil {
			return err
		}
	}
	return nil
}

// urlNow parses the URL as it is now.
func (c *config) urlNow() (*pgx.ConnConfig, error) {
	url, err := c.now()
	if err != nil {
		return nil, contract.Errorf(contract.Denied, "%w", err)
	}
	now, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, urlError(err)
	}
	return now, nil
}

// hosts lists the servers of a configuration, for people.
func hosts(cc *pgx.ConnConfig) []string {
	list := []string{net.JoinHostPort(cc.Host, strconv.Itoa(int(cc.Port)))}
	for _, f := range cc.Fallbacks {
		if h := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port))); !slices.Contains(list, h) {
			list = append(list, h)
		}
	}
	return list
}

func (c *config) where() string { return strings.Join(hosts(c.pool.ConnConfig), ", ") }

// quotedURL is how pgx begins the text of its errors: with the URL, whose password it hides as well
// as it can.
var quotedURL = regexp.MustCompile("(?s)^cannot parse `.*`: ")

// urlError makes an error without any part of the URL in which a password could hide: if it cannot
// be told what is what in the URL, nothing is quoted.
func urlError(err error) error {
	reason := quotedURL.ReplaceAllString(err.Error(), "")
	unclear := reason == err.Error()
	for _, beginning := range []string{"failed to parse as", "invalid port", "could not match"} {
		unclear = unclear || strings.HasPrefix(reason, beginning)
	}
	if unclear {
		return contract.Errorf(contract.Denied,
			"the database URL cannot be parsed: it must look like postgres://user@host:5432/database?sslmode=verify-full, and special characters in the user, password and host must be written as %%XX")
	}
	// A file that cannot be read, or a parameter with a value that is not understood.
	return contract.Errorf(contract.Denied, "the database URL cannot be used: %s", reason)
}
