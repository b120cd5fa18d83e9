package sqlite

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"
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

// TestOpenWaitsForAnotherProcess: a server that starts while another one closes or recovers the
// file waits for it, in every connection that it opens.
func TestOpenWaitsForAnotherProcess(t *testing.T) {
	url := fresh(t)
	open(t, url).Close()
	holder, err := sql.Open("sqlite", strings.TrimPrefix(url, "sqlite://"))
	if err != nil {
		t.Fatal(err)
	}
	holder.SetMaxOpenConns(1)
	for _, statement := range []string{"PRAGMA locking_mode = EXCLUSIVE", "BEGIN IMMEDIATE", "COMMIT"} {
		if _, err := holder.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, 1)
	time.AfterFunc(200*time.Millisecond, func() { ended <- holder.Close() })
	open(t, url).Close() // which fails the test at once if it does not wait
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
