package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// newDirectory makes a control database and the databases db-1 and db-2, and returns the flags that
// name them.
func newDirectory(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	at := func(name string) string {
		return (&url.URL{Scheme: "sqlite", Path: filepath.Join(dir, name)}).String()
	}
	file := filepath.Join(dir, "databases")
	lines := fmt.Sprintf("db-1 %s\ndb-2 %s\n", at("db1.db"), at("db2.db"))
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--directory", at("control.db"), "--databases-file", file}
	ran(t, flags, "directory", "migrate")
	return flags
}

// ran runs a command and returns what it prints.
func ran(t *testing.T, flags []string, args ...string) string {
	t.Helper()
	var out, stderr bytes.Buffer
	if code := Run(t.Context(), append(args, flags...), &out, &stderr); code != 0 {
		t.Fatalf("%v: exit code %d: %s", args, code, stderr.String())
	}
	return out.String()
}

// TestEtcdDirectory: a process that serves a store by etcd's API goes on while the store moves to
// another database and back. A client keeps what it wrote, and its watch is told that it is too
// old.
func TestEtcdDirectory(t *testing.T) {
	flags := newDirectory(t)
	ran(t, flags, "directory", "place", "team-a", "--in", "db-1")
	address := "http://" + freeAddress(t)
	ctx, cancel := context.WithCancel(t.Context())
	var stderr bytes.Buffer
	done := make(chan int, 1)
	go func() {
		done <- Run(ctx, append([]string{"etcd", "--listen-store", "team-a=" + address}, flags...),
			io.Discard, &stderr)
	}()
	defer func() {
		cancel()
		if code := <-done; code != 0 {
			t.Errorf("exit code %d: %s", code, stderr.String())
		}
	}()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	// Calls are tried again, as a client does, while the store cannot be used.
	try := func(what string, f func(context.Context) error) {
		t.Helper()
		end, stop := context.WithTimeout(ctx, time.Minute)
		defer stop()
		for {
			err := f(end)
			if err == nil {
				return
			}
			if end.Err() != nil {
				t.Fatalf("%s: %v", what, err)
			}
			select {
			case <-end.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	put := func(key, value string) (at int64) {
		t.Helper()
		try("put", func(ctx context.Context) error {
			r, err := client.Put(ctx, key, value)
			if err == nil {
				at = r.Header.Revision
			}
			return err
		})
		return at
	}
	first := put("/registry/a", "one")
	last := first
	for i, to := range []string{"db-2", "db-1"} {
		watch := client.Watch(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithRev(last+1))
		if out := ran(t, flags, "stores", "move-to", "team-a", "--to", to); !strings.Contains(out,
			fmt.Sprintf("moved the store \"team-a\" to the database %q: %d object", to, i+1)) {
			t.Errorf("the move says %q", out)
		}
		try("get", func(ctx context.Context) error {
			r, err := client.Get(ctx, "/registry/a")
			if err == nil && (len(r.Kvs) != 1 || r.Kvs[0].ModRevision != first || r.Header.Revision <= last) {
				t.Errorf("in %s the key is %v at revision %d, after %d", to, r.Kvs, r.Header.Revision, last)
			}
			return err
		})
		answer := <-watch
		if err := answer.Err(); !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("the watch ends with %v: %+v", err, answer)
		}
		if at := put(fmt.Sprintf("/registry/b%d", i), to); at <= last {
			t.Errorf("in %s a write is at %d, after %d", to, at, last)
		} else {
			last = at
		}
	}
	if out := ran(t, flags, "directory", "list"); !strings.Contains(out, "db-1       open    3") {
		t.Errorf("the directory says %q", out)
	}
}

// TestDirectoryFlags: what is wrong with the flags is said in one sentence.
func TestDirectoryFlags(t *testing.T) {
	flags := newDirectory(t)
	for _, test := range []struct {
		args, want string
		flags      []string
	}{
		{"etcd", "is in no directory", flags},
		{"etcd --store a --database sqlite:x.db", "exclude each other", flags},
		{"etcd --listen-store a=http://127.0.0.1:1", "needs --databases-file", flags[:2]},
		{"directory list", "give --directory", nil},
		{"stores move-to a", "name the other database by --to", flags},
		{"stores move-to a --to b --undo", "exclude each other", flags},
		{"stores move-to", "name one store", flags},
		{"directory drop a", "--confirm a", flags},
	} {
		var out bytes.Buffer
		code := Run(t.Context(), append(strings.Fields(test.args), test.flags...), &out, &out)
		if code != 2 || !strings.Contains(out.String(), test.want) {
			t.Errorf("%s: exit code %d: %s", test.args, code, out.String())
		}
	}
	var out bytes.Buffer
	if code := Run(t.Context(), append([]string{"stores", "move-to", "none", "--to", "db-1"}, flags...),
		&out, &out); code != 1 || !strings.Contains(out.String(), "directory place") {
		t.Errorf("a store that is not there: exit code %d: %s", code, out.String())
	}
}

// TestCopyFlags: a server that begins anew in another database has the flags of the first one,
// whatever their kinds are.
func TestCopyFlags(t *testing.T) {
	_, first := newServe()
	_, second := newServe()
	flags := []string{"--tls-sni-cert-key=a.crt,a.key:a.example", "--tls-sni-cert-key=b.crt,b.key", "-v=3",
		"--webhook-service=a=b/c,d=e/f", "--feature-gates=WatchList=true", "--vmodule=x=2",
		"--watch-cache-sizes=a#1,b#2", "--watch-cache-sizes=c#3", "--store=team-a", "--request-timeout=3m",
		"--log-json-info-buffer-size=2Mi", "--enable-crds"}
	if err := first.ParseFlags(flags); err != nil {
		t.Fatal(err)
	}
	if err := copyFlags(second.Flags(), first.Flags()); err != nil {
		t.Fatal(err)
	}
	first.Flags().VisitAll(func(f *pflag.Flag) {
		if is := second.Flags().Lookup(f.Name); is.Value.String() != f.Value.String() || is.Changed != f.Changed {
			t.Errorf("--%s is %s (set: %t), want %s (set: %t)", f.Name, is.Value, is.Changed, f.Value,
				f.Changed)
		}
	})
}
