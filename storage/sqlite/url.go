package sqlite

import (
	"fmt"
	"net/url"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// config is what a database URL says.
type config struct {
	// path is the store's file, absolute; empty for a store in memory.
	path string
	// main is the file of the default store, and store the name of this one; see configure.
	main, store string
	// synchronous is FULL, NORMAL or OFF.
	synchronous string
	// cacheKiB bounds the page cache of the writing connection.
	cacheKiB int
	// readers is the number of connections for reads of objects.
	readers int
	// busyTimeout is how long a write waits for another process to finish its own.
	busyTimeout time.Duration
}

const (
	maxReaders  = 64
	minCacheKiB = 1 << 10
)

// parameters are the query parameters of a URL.
var parameters = map[string]func(*config, string) error{
	"synchronous": func(c *config, v string) error {
		c.synchronous = strings.ToUpper(v)
		if !slices.Contains([]string{"FULL", "NORMAL", "OFF"}, c.synchronous) {
			return fmt.Errorf("is FULL, NORMAL or OFF, not %q", v)
		}
		return nil
	},
	"cache_size": func(c *config, v string) error {
		for unit, kib := range map[string]int{"KiB": 1, "MiB": 1 << 10, "GiB": 1 << 20} {
			if number, ok := strings.CutSuffix(v, unit); ok {
				if n, err := strconv.Atoi(number); err == nil && n > 0 && n <= 1<<30/kib &&
					n*kib >= minCacheKiB {
					c.cacheKiB = n * kib
					return nil
				}
			}
		}
		return fmt.Errorf("is a size of at least 1MiB, such as 64MiB or 1GiB, not %q", v)
	},
	"readers": func(c *config, v string) (err error) {
		if c.readers, err = strconv.Atoi(v); err != nil || c.readers < 1 || c.readers > maxReaders {
			return fmt.Errorf("is a number of connections from 1 to %d, not %q", maxReaders, v)
		}
		return nil
	},
	"busy_timeout": func(c *config, v string) (err error) {
		if c.busyTimeout, err = time.ParseDuration(v); err != nil || c.busyTimeout < 0 {
			return fmt.Errorf("is a duration such as 5s or 500ms, not %q", v)
		}
		return nil
	},
}

// parse reads a database URL.
func parse(text string) (config, error) {
	c := config{synchronous: "FULL", cacheKiB: 64 << 10, readers: max(4, runtime.GOMAXPROCS(0)),
		busyTimeout: 5 * time.Second}
	if scheme, rest, found := strings.Cut(text, ":"); found && scheme == "memory" {
		if rest != "" {
			return c, contract.Errorf(contract.Invalid, "the database URL of a store in memory is just "+
				"%q, without a path or parameters", "memory:")
		}
		c.readers = 1
		return c, nil
	}
	u, err := url.Parse(text)
	if err != nil {
		return c, contract.Errorf(contract.Invalid, "the database URL cannot be read: percent-encode "+
			"unusual characters of the file's path")
	}
	bad := func(format string, args ...any) (config, error) {
		return c, contract.Errorf(contract.Invalid, "the database URL %q "+format,
			append([]any{u.Redacted()}, args...)...)
	}
	if u.Scheme != "sqlite" {
		return bad("is not one of SQLite: write sqlite:///absolute/path.db, sqlite:relative/path.db or memory:")
	}
	path := u.Path
	if u.Opaque != "" {
		if path, err = url.PathUnescape(u.Opaque); err != nil {
			return bad("cannot be read: percent-encode unusual characters of the file's path")
		}
	}
	switch {
	case u.Host != "" || u.User != nil:
		return bad("names a host: write sqlite:///absolute/path.db with three slashes, or sqlite:relative/path.db with none")
	case u.Fragment != "":
		return bad("has a fragment: write %%23 for a # in the file's path")
	case path == "" || strings.HasSuffix(path, "/"):
		return bad("names no file: write sqlite:///absolute/path.db or sqlite:relative/path.db")
	case strings.ContainsRune(path, 0):
		return bad("has a zero byte in the file's path")
	}
	if runtime.GOOS == "windows" {
		path = strings.TrimPrefix(path, "/") // sqlite:///C:/path
	}
	if c.path, err = filepath.Abs(filepath.FromSlash(path)); err != nil {
		return c, contract.Errorf(contract.Invalid, "the working directory is not known, write an "+
			"absolute path in the database URL: %w", err)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return bad("has parameters that cannot be read")
	}
	for name, values := range query {
		set := parameters[name]
		if set == nil {
			return bad("has an unknown parameter %q: there are busy_timeout, cache_size, readers "+
				"and synchronous", name)
		}
		if len(values) != 1 {
			return bad("has the parameter %q twice", name)
		}
		if err := set(&c, values[0]); err != nil {
			return bad("is wrong: %s %w", name, err)
		}
	}
	return c, nil
}
