package sqlite

import (
	"context"
	"testing"
)

// TestSettings asks the connections for what they are to have been told: a PRAGMA that SQLite does
// not know is no error.
func TestSettings(t *testing.T) {
	url := fresh(t)
	for _, test := range []struct {
		query              string
		synchronous, cache string
	}{
		{"", "2", "-65536"},
		{"?synchronous=FULL", "2", "-65536"},
		{"?synchronous=NORMAL&cache_size=2MiB", "1", "-2048"},
		{"?synchronous=OFF", "0", "-65536"},
	} {
		b := open(t, url+test.query).(*backend)
		for _, p := range b.pools() {
			c, err := p.Get(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{"temp_store": "2", "query_only": "1", "cache_size": "-4096"}
			if p.Pool == b.commits {
				want = map[string]string{
					"temp_store": "2", "query_only": "0", "synchronous": test.synchronous,
					"cache_size": test.cache,
					"fullfsync":  map[bool]string{true: "1", false: "0"}[test.synchronous == "2"],
				}
			}
			for name, want := range want {
				if got, err := c.Once("PRAGMA " + name); err != nil || got != want {
					t.Errorf("%q: %s of a %s connection is %s, %v, want %s", test.query, name,
						p.name, got, err, want)
				}
			}
			p.Put(c)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}
