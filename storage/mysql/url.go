package mysql

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// config is what a database URL says. Files are named here and read for each new connection, so
// that passwords and certificates can be replaced while the program runs.
type config struct {
	// login, if not nil, returns the user and the password of a connection.
	login          contract.Login
	user, database string
	network, addr  string
	// The password is that of passwordFile, else of the URL, else of the environment variable
	// MYSQL_PWD.
	passwordFile string
	password     string
	hasPassword  bool

	tls                    string
	tlsCA, tlsCert, tlsKey string

	connectTimeout time.Duration
	readConns      int
	connLifetime   time.Duration
	connIdleTime   time.Duration
}

// modes of TLS, by the URL parameter tls.
const (
	tlsOff        = "false"
	tlsPreferred  = "preferred"
	tlsSkipVerify = "skip-verify"
	tlsVerifyCA   = "verify-ca"
	tlsVerify     = "true"
)

var tlsModes = []string{tlsOff, tlsPreferred, tlsSkipVerify, tlsVerifyCA, tlsVerify}

const passwordEnv = "MYSQL_PWD"

// parseURL reads a database URL. Its errors do not repeat the URL, which may hold a password.
func parseURL(text string) (*config, error) {
	u, err := url.Parse(text)
	if err != nil {
		// The error of url.Parse quotes the URL.
		return nil, errors.New(
			"the database URL is malformed; write mysql://user@host:3306/database?tls=true, with special characters in the user name and the password as %XX")
	}
	if !slices.Contains(schemes, u.Scheme) || u.Opaque != "" {
		return nil,
			errors.New("the database URL is not of the form mysql://user@host:3306/database?tls=true")
	}
	c := &config{
		user:           u.User.Username(),
		database:       strings.TrimPrefix(u.Path, "/"),
		network:        "tcp",
		connectTimeout: 10 * time.Second,
		readConns:      8,
		connLifetime:   time.Hour,
		connIdleTime:   5 * time.Minute,
	}
	c.password, c.hasPassword = u.User.Password()
	switch {
	case c.database == "":
		return nil,
			errors.New("the database URL names no database: write mysql://user@host:3306/database?tls=true")
	case strings.ContainsAny(u.EscapedPath(), "@") || strings.Contains(c.database, "/"):
		// If the password has a slash in it, it is here.
		return nil, errors.New("the database URL has more than the name of a database after the " +
			"host: write / in a password as %2F, and @ in any part as %40")
	case u.Fragment != "":
		return nil, errors.New("the database URL has a fragment (#…); write # in a password as %23")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errors.New("the parameters of the database URL are malformed")
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if len(query[name]) > 1 {
			return nil, fmt.Errorf("the database URL has the parameter %s more than once", name)
		}
		known, err := c.set(name, query.Get(name))
		switch {
		case err != nil:
			return nil, fmt.Errorf("the parameter %s of the database URL %w", name, err)
		case known:
		case strings.Contains(u.RawQuery, "@"):
			// If the password has a question mark in it, it is here.
			return nil, errors.New("the database URL has an unknown parameter; write ? in a " +
				"password as %3F, and @ in any part as %40")
		default:
			return nil, fmt.Errorf("the database URL has an unknown parameter %q", name)
		}
	}
	if err := c.setAddress(u, query.Get("socket")); err != nil {
		return nil, err
	}
	return c, c.checkTLS()
}

// set sets what a parameter of the URL says, and tells whether the parameter is known.
func (c *config) set(name, value string) (known bool, err error) {
	switch name {
	case "socket": // see setAddress
	case "password_file":
		c.passwordFile = value
	case "tls":
		c.tls = value
	case "ssl-ca":
		c.tlsCA = value
	case "ssl-cert":
		c.tlsCert = value
	case "ssl-key":
		c.tlsKey = value
	case "connect_timeout":
		if _, seconds := strconv.Atoi(value); seconds == nil {
			value += "s"
		}
		c.connectTimeout, err = positiveDuration(value)
	case "pool_max_conns":
		c.readConns, err = strconv.Atoi(value)
		if err != nil || c.readConns < 1 {
			err = errors.New("is not a number of at least 1")
		}
	case "pool_max_conn_lifetime":
		c.connLifetime, err = positiveDuration(value)
	case "pool_max_conn_idle_time":
		c.connIdleTime, err = positiveDuration(value)
	default:
		return false, nil
	}
	return true, err
}

func positiveDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, errors.New("is not a duration such as 30s or 10m")
	}
	return d, nil
}

func (c *config) setAddress(u *url.URL, socket string) error {
	if socket != "" {
		if u.Host != "" {
			return errors.New("the database URL names a host and a socket; leave one of them out")
		}
		c.network, c.addr = "unix", socket
		return nil
	}
	host, port := u.Hostname(), u.Port()
	if host == "" {
		return errors.New(
			"the database URL names no host; write mysql://user@host:3306/database?tls=true, or mysql://user@/database?socket=/run/mysqld/mysqld.sock")
	}
	if strings.Contains(host, ",") {
		return errors.New("the database URL names several hosts; name one, or a proxy or an " +
			"address that follows the primary")
	}
	if port == "" {
		port = "3306"
	}
	c.addr = net.JoinHostPort(host, port)
	return nil
}

func (c *config) checkTLS() error {
	switch {
	case c.tls == "" && c.network == "unix":
		c.tls = tlsOff
	case c.tls == "" && c.tlsCA == "" && c.local():
		c.tls = tlsPreferred
	case c.tls == "":
		// Otherwise the password would go to whoever answers.
		c.tls = tlsVerify
	}
	switch {
	case !slices.Contains(tlsModes, c.tls):
		return fmt.Errorf("the parameter tls of the database URL is not one of %s",
			strings.Join(tlsModes, ", "))
	case c.tls == tlsOff && (c.tlsCA != "" || c.tlsCert != "" || c.tlsKey != ""):
		return errors.New("the database URL has tls=false and certificates; leave one of them out")
	case (c.tls == tlsPreferred || c.tls == tlsSkipVerify) && c.tlsCA != "":
		return fmt.Errorf("the database URL has ssl-ca, which tls=%s would not use: write "+
			"tls=true or tls=verify-ca", c.tls)
	case (c.tlsCert == "") != (c.tlsKey == ""):
		return errors.New("the parameters ssl-cert and ssl-key of the database URL belong together")
	}
	return nil
}

// local tells whether the host is this machine, to which nobody else is on the way.
func (c *config) local() bool {
	host, _, err := net.SplitHostPort(c.addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// String names the database for people, without the password.
func (c *config) String() string {
	if c.network == "unix" {
		return fmt.Sprintf("%s in %s", c.database, c.addr)
	}
	return fmt.Sprintf("%s at %s", c.database, c.addr)
}

// dial makes the driver's configuration for one connection, with the password and the certificates
// as they are now.
func (c *config) dial(ctx context.Context, multiStatements bool,
	log mysql.Logger) (*mysql.Config, contract.Credentials, error) {
	d := mysql.NewConfig()
	d.DBName, d.Net, d.Addr = c.database, c.network, c.addr
	d.Timeout = c.connectTimeout
	d.Logger = log
	// Reads are constant statements with arguments that the driver quotes: one round trip, and but
	// for preparedState no prepared statement on the server. Several statements in one text are
	// sent over the commit connections only.
	d.InterpolateParams = true
	d.MultiStatements = multiStatements
	// The store's limits follow from the server's max_allowed_packet; see limitsFor.
	d.MaxAllowedPacket = 1 << 30
	login, err := c.logIn(ctx, d)
	if err != nil {
		return nil, login, err
	}
	// The server has to see the token of a cloud, to find out who has signed it. Whoever is at the
	// other end has shown a certificate, or is in this machine's file system.
	d.AllowCleartextPasswords = c.login != nil && login.URL == "" &&
		(c.tls == tlsVerify || c.tls == tlsVerifyCA || c.network == "unix")
	if c.tls == tlsOff {
		return d, login, nil
	}
	d.AllowFallbackToPlaintext = c.tls == tlsPreferred
	d.TLS, err = c.tlsConfig()
	return d, login, err
}

// logIn sets the user and the password as they are now.
func (c *config) logIn(ctx context.Context, d *mysql.Config) (login contract.Credentials, err error) {
	from := c
	if c.login != nil {
		if login, err = c.login(ctx); err != nil {
			return login, err
		}
		if login.URL == "" {
			d.User, d.Passwd = cmp.Or(login.User, c.user), login.Password
			if d.User == "" {
				return login, errors.New("neither the database URL nor its login names a user")
			}
			return login, nil
		}
		if from, err = parseURL(login.URL); err != nil {
			return login, err
		}
	}
	if from.user == "" {
		return login, errNoUser
	}
	d.User = from.user
	d.Passwd, err = from.readPassword()
	return login, err
}

var errNoUser = errors.New("the database URL names no user: write " +
	"mysql://user@host:3306/database?tls=true")

func (c *config) readPassword() (string, error) {
	if c.passwordFile == "" {
		if c.hasPassword {
			return c.password, nil
		}
		return os.Getenv(passwordEnv), nil
	}
	data, err := os.ReadFile(c.passwordFile)
	if err != nil {
		return "", fmt.Errorf("cannot read the password file: %w", err)
	}
	return strings.TrimRight(string(data), "\r\n"), nil
}

func (c *config) tlsConfig() (*tls.Config, error) {
	host, _, err := net.SplitHostPort(c.addr)
	if err != nil {
		host = "localhost" // a socket
	}
	t := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	if c.tlsCA != "" {
		pem, err := os.ReadFile(c.tlsCA)
		if err != nil {
			return nil, fmt.Errorf("cannot read the certificate authority ssl-ca: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("the file %s of ssl-ca holds no certificate in PEM", c.tlsCA)
		}
	}
	if c.tlsCert != "" {
		pair, err := tls.LoadX509KeyPair(c.tlsCert, c.tlsKey)
		if err != nil {
			return nil, fmt.Errorf("cannot load the client certificate of ssl-cert and ssl-key: %w",
				err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	switch c.tls {
	case tlsPreferred, tlsSkipVerify:
		t.InsecureSkipVerify = true
	case tlsVerifyCA:
		// The chain is verified, and the name is not.
		t.InsecureSkipVerify = true
		t.VerifyConnection = func(s tls.ConnectionState) error {
			opts := x509.VerifyOptions{Roots: t.RootCAs, Intermediates: x509.NewCertPool()}
			for _, cert := range s.PeerCertificates[1:] {
				opts.Intermediates.AddCert(cert)
			}
			_, err := s.PeerCertificates[0].Verify(opts)
			return err
		}
	}
	return t, nil
}
