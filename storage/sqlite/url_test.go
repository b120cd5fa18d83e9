package sqlite

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

func TestParse(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		url  string
		want config
	}{
		{"sqlite:///var/lib/x.db", config{path: "/var/lib/x.db"}},
		{"sqlite:/var/lib/x.db", config{path: "/var/lib/x.db"}},
		{"sqlite:x.db", config{path: filepath.Join(here, "x.db")}},
		{"sqlite:./data/../x.db", config{path: filepath.Join(here, "x.db")}},
		{"sqlite:../x.db", config{path: filepath.Join(filepath.Dir(here), "x.db")}},
		{"sqlite:///a%20b%23c%3Fd%25.db", config{path: "/a b#c?d%.db"}},
		{"sqlite:a%20b.db", config{path: filepath.Join(here, "a b.db")}},
		{"sqlite:///x.db?synchronous=normal", config{path: "/x.db", synchronous: "NORMAL"}},
		{"sqlite:x.db?synchronous=OFF&readers=7", config{path: filepath.Join(here, "x.db"),
			synchronous: "OFF", readers: 7}},
		{"sqlite:///x.db?cache_size=256MiB&busy_timeout=1m30s",
			config{path: "/x.db", cacheKiB: 256 << 10, busyTimeout: 90 * time.Second}},
		{"sqlite:///x.db?cache_size=1024KiB", config{path: "/x.db", cacheKiB: 1024}},
		{"sqlite:///x.db?cache_size=2GiB", config{path: "/x.db", cacheKiB: 2 << 20}},
		{"memory:", config{readers: 1}},
	} {
		got, err := parse(test.url)
		if err != nil {
			t.Errorf("%s: %v", test.url, err)
			continue
		}
		want := test.want
		if want.synchronous == "" {
			want.synchronous = "FULL"
		}
		if want.cacheKiB == 0 {
			want.cacheKiB = 64 << 10
		}
		if want.busyTimeout == 0 {
			want.busyTimeout = 5 * time.Second
		}
		if want.readers == 0 {
			want.readers = got.readers
			if got.readers < 4 {
				t.Errorf("%s: %d readers", test.url, got.readers)
			}
		}
		if got != want {
			t.Errorf("%s: %+v, want %+v", test.url, got, want)
		}
	}
	for url, want := range map[string]string{
		"sqlite:":                               "names no file",
		"sqlite://":                             "names no file",
		"sqlite:///":                            "names no file",
		"sqlite:///var/lib/":                    "names no file",
		"sqlite://relative/x.db":                "names a host",
		"sqlite://user:hunter2@host/x.db":       "names a host",
		"sqlite:///x.db#y":                      "fragment",
		"sqlite:///x%00.db":                     "zero byte",
		"sqlite:%zz":                            "percent-encode",
		"sqlite:///%zz":                         "percent-encode",
		"postgres://x/y":                        "not one of SQLite",
		"memory:x":                              "just \"memory:\"",
		"memory:?readers=3":                     "just \"memory:\"",
		"memory://":                             "just \"memory:\"",
		"sqlite:x.db?mode=ro":                   `unknown parameter "mode"`,
		"sqlite:x.db?Synchronous=FULL":          `unknown parameter "Synchronous"`,
		"sqlite:x.db?readers=2&readers=3":       `"readers" twice`,
		"sqlite:x.db?readers=0":                 "from 1 to 64",
		"sqlite:x.db?readers=65":                "from 1 to 64",
		"sqlite:x.db?readers=many":              "from 1 to 64",
		"sqlite:x.db?synchronous=EXTRA":         "FULL, NORMAL or OFF",
		"sqlite:x.db?cache_size=64":             "such as 64MiB",
		"sqlite:x.db?cache_size=1023KiB":        "at least 1MiB",
		"sqlite:x.db?cache_size=-1MiB":          "such as 64MiB",
		"sqlite:x.db?cache_size=99999999999GiB": "such as 64MiB",
		"sqlite:x.db?busy_timeout=5":            "such as 5s",
		"sqlite:x.db?busy_timeout=-5s":          "such as 5s",
		"sqlite:x.db?a=%zz":                     "cannot be read",
	} {
		_, err := parse(url)
		if err == nil || !strings.Contains(err.Error(), want) || contract.ClassOf(err) != contract.Invalid {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the password is in the error: %v", url, err)
		}
	}
}

// FuzzURL: any text is a configuration that can be used, or an error in one line.
func FuzzURL(f *testing.F) {
	for _, seed := range []string{
		"sqlite:///var/lib/rowkeeper/state.db",
		"sqlite:data/state.db?synchronous=NORMAL&cache_size=64MiB&readers=3&busy_timeout=1s",
		"memory:", "memory:x",
		"sqlite://host/x", "sqlite:%zz", "sqlite:///a%00b", "sqlite:///a%23?b#c",
		"sqlite:file:x?mode=memory&_pragma=x", "sqlite:///x?readers=1&readers=2", "://",
		"sqlite:..", "\x00",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parse(text)
		if err != nil {
			var known *contract.Error
			if !errors.As(err, &known) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if c.memory() != (text == "memory:") || !c.memory() && !filepath.IsAbs(c.path) ||
			strings.ContainsRune(c.path, 0) {
			t.Errorf("%q is %+v", text, c)
		}
		if c.readers < 1 || c.readers > maxReaders || c.cacheKiB < minCacheKiB || c.busyTimeout < 0 {
			t.Errorf("%q is %+v", text, c)
		}
	})
}
