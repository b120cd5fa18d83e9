package database

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// namedDriver only has a name.
type namedDriver string

func (d namedDriver) Name() string       { return string(d) }
func (d namedDriver) Examples() []string { return nil }
func (d namedDriver) Schemes() []string  { return []string{string(d), string(d) + "s"} }
func (d namedDriver) Connect(context.Context, string, contract.DriverOptions) (contract.Database, error) {
	return nil, errors.New("opened " + string(d))
}
func (d namedDriver) Migrate(context.Context, string, contract.DriverOptions) ([]contract.Migration, error) {
	return nil, errors.New("migrated " + string(d))
}
func (d namedDriver) Status(context.Context, string, contract.DriverOptions) ([]contract.Migration, error) {
	return nil, errors.New("asked " + string(d))
}

func (d namedDriver) CreateStore(context.Context, string, contract.DriverOptions) (bool, error) {
	return false, errors.New("created a store by " + string(d))
}
func (d namedDriver) Stores(context.Context, string, contract.DriverOptions) ([]string, error) {
	return nil, errors.New("listed the stores by " + string(d))
}

func (namedDriver) Query(context.Context, string, contract.DriverOptions, contract.Query,
	func([]string, []any) error) error {
	return nil
}

func TestOpenPicksTheDriver(t *testing.T) {
	both := []contract.Driver{namedDriver("red"), namedDriver("blue")}
	for name, test := range map[string]struct {
		config Config
		want   []string
	}{
		"by scheme": {Config{URL: "blue://host/db", Drivers: both},
			[]string{"opened blue"}},
		"by another scheme": {Config{URL: "reds:", Drivers: both}, []string{"opened red"}},
		"to migrate": {Config{URL: "red:", Drivers: both, Migrate: true},
			[]string{"migrated red"}},
		"unknown scheme": {Config{URL: "green://user:secret@host/", Drivers: both},
			[]string{"green:", "red:, reds:, blue:, blues:"}},
		"no scheme": {Config{URL: "/var/lib/secret.db", Drivers: both},
			[]string{"no scheme", "red:, reds:, blue:, blues:"}},
		"password first": {Config{URL: "secret word:x", Drivers: both}, []string{"no scheme"}},
		"no URL": {Config{Drivers: both},
			[]string{"give a URL", "red:, reds:, blue:, blues:"}},
		"no driver": {Config{URL: "red:"}, []string{"Config.Drivers"}},
		"bad name of a store": {Config{URL: "red:", Drivers: both, Store: "../Team"},
			[]string{`no store can have the name "../Team"`, "63 lower-case"}},
	} {
		t.Run(name, func(t *testing.T) {
			store, err := Open(t.Context(), test.config, nil)
			if err == nil {
				store.Close()
				t.Fatal("no error")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("%q gives away a secret", err)
			}
		})
	}
	if _, err := Migrate(t.Context(), Config{URL: "red:", Drivers: both}); err == nil ||
		err.Error() != "migrated red" {
		t.Error(err)
	}
	if _, err := Migrations(t.Context(), Config{URL: "red:", Drivers: both}); err == nil ||
		err.Error() != "asked red" {
		t.Error(err)
	}
}

func TestStoreNames(t *testing.T) {
	for name, possible := range map[string]bool{
		"a": true, "7": true, "team-a": true, "a--b": true, strings.Repeat("x", 63): true,
		"": false, strings.Repeat("x", 64): false, "-a": false, "a-": false, "-": false, "A": false,
		"a.b": false, "a_b": false, "a/b": false, "a b": false, "a\n": false, "é": false,
	} {
		if err := CheckStoreName(name); (err == nil) != possible {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestResourceNames(t *testing.T) {
	for name, want := range map[string][2]string{
		"events": {"", "events"}, "coordination.k8s.io/leases": {"coordination.k8s.io", "leases"},
		"": {}, "/": {}, "/events": {}, "apps/": {}, "a/b/c": {}, "leases.coordination.k8s.io": {},
		"../events": {}, "./events": {}, "..": {},
	} {
		group, resource, err := SplitResource(name)
		if [2]string{group, resource} != want || (err == nil) != (want[1] != "") {
			t.Errorf("%q is %q of %q, %v", name, resource, group, err)
		}
	}
}

func TestKeys(t *testing.T) {
	for prefix, want := range map[string]contract.Key{"": "/", "/": "/", "/registry": "/registry/",
		"custom//prefix/": "/custom/prefix/"} {
		if got := Root(prefix); got != want {
			t.Errorf("the prefix %q begins at %q", prefix, got)
		}
		here := Directory(prefix, "apps/pods")
		if here != want+"apps/pods/" {
			t.Errorf("the directory below %q is %q", prefix, here)
		}
		if end := contract.PrefixEnd(here); end <= here+"\xff\xff" || end > want+"apps/pods0" {
			t.Errorf("the directory %q ends at %q", here, end)
		}
	}
	if next := After("/a"); next <= "/a" || next > "/a\x00" {
		t.Errorf("the key after /a is %q", next)
	}
}
