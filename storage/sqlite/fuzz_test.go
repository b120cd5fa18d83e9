package sqlite

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// FuzzURL: any text is a configuration that can be used, or an error in one line.
func FuzzURL(f *testing.F) {
	for _, seed := range []string{
		"sqlite:///var/lib/rowkeeper/state.db", "sqlite:data/state.db?synchronous=NORMAL&cache_size=64MiB&readers=3&busy_timeout=1s", "memory:", "memory:x",
		"sqlite://host/x", "sqlite:%zz", "sqlite:///a%00b", "sqlite:///a%23?b#c", "sqlite:file:x?mode=memory&_pragma=x", "sqlite:///x?readers=1&readers=2", "://", "sqlite:..", "\x00",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parse(text)
		if err != nil {
			var known *mvcc.Error
			if !errors.As(err, &known) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if c.memory() != (text == "memory:") || !c.memory() && !filepath.IsAbs(c.path) || strings.ContainsRune(c.path, 0) {
			t.Errorf("%q is %+v", text, c)
		}
		if c.readers < 1 || c.readers > maxReaders || c.cacheKiB < minCacheKiB || c.busyTimeout < 0 {
			t.Errorf("%q is %+v", text, c)
		}
	})
}
