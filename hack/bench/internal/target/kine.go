package target

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"net/url"
	"syscall"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// kinePool is how many connections kine may have to a database server. It has no limit by default,
// and then fails where more clients write than the server accepts connections.
const kinePool = 64

// kineOn serves kine on a database.
func kineOn(onDatabase serve) serve {
	return func(ctx context.Context, dir string, p Programs) (Server, error) {
		database, err := onDatabase(ctx, dir, p)
		if err != nil {
			return nil, err
		}
		k, err := startKine(ctx, dir, p, database)
		if err != nil {
			return nil, errors.Join(err, database.Stop())
		}
		return k, nil
	}
}

func startKine(ctx context.Context, dir string, p Programs, database Server) (Server, error) {
	endpoint, about, err := kineEndpoint(database.Address())
	if err != nil {
		return nil, err
	}
	port, err := programs.FreePort()
	if err != nil {
		return nil, err
	}
	if dir, err = mkdir(dir, "kine"); err != nil {
		return nil, err
	}
	// The program itself knows its version only when it is released.
	build, err := buildinfo.ReadFile(p.Kine)
	if err != nil {
		return nil, err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	k := &composed{
		Server:  database,
		address: "http://" + address,
		behind:  "kine:" + endpoint,
		about:   "kine " + build.Main.Version + ": " + about,
		front: program(dir, syscall.SIGTERM, p.Kine,
			"--listen-address="+address, "--endpoint="+endpoint, "--metrics-bind-address=0",
			fmt.Sprintf("--datastore-max-open-connections=%d", kinePool),
			fmt.Sprintf("--datastore-max-idle-connections=%d", kinePool)),
	}
	if err := k.start(ctx); err != nil {
		return nil, errors.Join(err, k.front.Stop(ctx))
	}
	return k, nil
}

// kineDialed is a client of kine. It is no Archiver: users of kine back up the database.
type kineDialed struct{ Client }

func dialKine(ctx context.Context, address string, o DialOptions) (Client, error) {
	c, err := dialEtcd(ctx, address, o)
	return kineDialed{c}, err
}

// kineEndpoint writes a database's URL as kine wants it.
func kineEndpoint(address string) (endpoint, about string, err error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", "", err
	}
	pool := fmt.Sprintf("at most %d connections to the database", kinePool)
	switch u.Scheme {
	case "sqlite":
		// Its own defaults, but for synchronous, which is NORMAL there and does not survive a power
		// failure.
		return "sqlite://" + u.Path +
			".kine?_journal_mode=WAL&_busy_timeout=30000&_synchronous=FULL&_txlock=immediate&_stmt_cache_size=20&cache=shared", "one process on its database", nil
	case "postgres":
		return address, pool, nil
	case "mysql":
		password, _ := u.User.Password()
		return fmt.Sprintf("mysql://%s:%s@tcp(%s)%s", u.User.Username(), password, u.Host, u.Path),
			pool, nil
	}
	return "", "", fmt.Errorf("kine has no driver for %s", u.Scheme)
}
