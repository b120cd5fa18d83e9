package postgres

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// config is what the URL and the options say.
type config struct {
	url string
	// login, if not nil, returns the user and the password of a connection, and used is what it has
	// returned last.
	login   contract.Login
	used    atomic.Pointer[used]
	log     *slog.Logger
	timeout time.Duration

	pool *pgxpool.Config
	// prepared is false if statements must not be prepared and sessions not be set up, since a
	// pooler gives each transaction another one.
	prepared bool
	// passwordFile, if not empty, is read for every new connection, unless login says otherwise.
	passwordFile string
}

// defaultTimeout is for options that say none.
const defaultTimeout = 30 * time.Second

// parseURL reads the URL, and the files that it names. See the package documentation for its
// parameters.
func parseURL(url string, opts contract.DriverOptions) (*config, error) {
	c := &config{url: url, login: opts.Login, log: opts.Logger, timeout: cmp.Or(opts.Timeout, defaultTimeout),
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
// every new connection, and returns when that is to be replaced, zero if never.
func (c *config) refresh(ctx context.Context, cc *pgx.ConnConfig) (replaceAt time.Time, err error) {
	fresh, err := pgx.ParseConfig(c.url)
	if err != nil {
		return replaceAt, urlError(err)
	}
	secure(c.url, fresh)
	cc.Password, cc.TLSConfig, cc.Fallbacks = fresh.Password, fresh.TLSConfig, fresh.Fallbacks
	passwordFile := c.passwordFile
	var login contract.Credentials
	if c.login != nil {
		if login, err = c.login(ctx); err != nil {
			return replaceAt, contract.Errorf(contract.Denied, "%w", err)
		}
		replaceAt = contract.ReplaceAt(login, time.Now())
		if login.URL != "" {
			now, err := pgx.ParseConfig(login.URL)
			if err != nil {
				return replaceAt, urlError(err)
			}
			cc.User, cc.Password = now.User, now.Password
			passwordFile = now.RuntimeParams["password_file"]
		} else {
			cc.User, cc.Password = cmp.Or(login.User, cc.User), login.Password
			passwordFile = ""
		}
	}
	if passwordFile != "" {
		if cc.Password, err = readPassword(passwordFile); err != nil {
			return replaceAt, err
		}
	}
	c.used.Store(&used{cc.User, cc.Password, login.Refused})
	return replaceAt, nil
}

// used are credentials that were given to a connection.
type used struct {
	user, password string
	refused        func()
}

// loginRefused says that the server has refused the credentials of a connection.
func (c *config) loginRefused(cc *pgconn.Config) {
	// If there are newer ones, they are not refused yet.
	if u := c.used.Load(); u != nil && u.refused != nil && u.user == cc.User && u.password == cc.Password {
		u.refused()
	}
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
