package testkit_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/rowkeeper/rowkeeper/pkg/example/exampletest"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	first := exampletest.Start(t, testkit.Options{Dir: dir})
	garbage := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(garbage, []byte("resources: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	encrypted := func(file string) func(*options.StorageOptions) {
		return func(o *options.StorageOptions) { o.EncryptionConfig = file }
	}
	api := exampletest.API
	incomplete, undescribed := api, api
	incomplete.New = nil
	undescribed.NewConfig = nil
	without := func(change func(*options.StorageOptions)) testkit.Options {
		return testkit.Options{Database: testkit.Memory, Storage: change}
	}
	for name, tc := range map[string]struct {
		api     testkit.API
		options testkit.Options
		want    string
	}{
		"a directory that is in use": {api, testkit.Options{Dir: dir},
			"is in use by the server with process id"},
		"a directory and a database": {api, testkit.Options{Dir: dir, Database: testkit.Memory},
			"exclude each other"},
		"a database without its driver": {api,
			testkit.Options{Database: testkit.Database{URL: "postgres://host/db"}},
			"needs its driver"},
		"a fake clock for a database with a clock": {api,
			testkit.Options{FakeClock: true, Storage: func(o *options.StorageOptions) {
				o.URL = "postgres://user:secret@host/db"
			}}, "has a clock of its own"},
		"no New": {incomplete, testkit.Options{},
			"needs a Scheme, Codecs, and New"},
		"no definitions": {undescribed,
			testkit.Options{Database: testkit.Memory}, "set API.OpenAPI"},
		"a group without New": {api, testkit.Options{Database: testkit.Memory,
			Groups: []testkit.Group{{Scheme: api.Scheme}}}, "a group needs"},
		"no prefix": {api, without(func(o *options.StorageOptions) {
			o.Prefix = "x/"
		}), "--storage-prefix"},
		"no scheme": {testkit.API{New: api.New}, testkit.Options{},
			"needs a Scheme"},
		"no encryption configuration": {api,
			without(encrypted(filepath.Join(dir, "missing.yaml"))),
			"cannot use --encryption-provider-config"},
		"a broken encryption configuration": {api, without(encrypted(garbage)),
			"cannot use --encryption-provider-config"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := testkit.Launch(t.Context(), tc.api, tc.options)
			if err == nil || !strings.Contains(err.Error(), tc.want) ||
				strings.Contains(err.Error(), "secret") {
				t.Errorf("the error is %v, want one with %q and without a password", err, tc.want)
			}
		})
	}
	// The one that was there is still there.
	if err := first.Store.Ready(t.Context()); err != nil {
		t.Errorf("the server whose directory was wanted by another one: %v", err)
	}
}

// TestFailingNew looks at an author's own error.
func TestFailingNew(t *testing.T) {
	api := exampletest.API
	api.New = func(*genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer,
		error) {
		return nil, os.ErrPermission
	}
	if _, err := testkit.Launch(t.Context(), api, testkit.Options{Database: testkit.Memory}); err == nil ||
		!strings.Contains(err.Error(), "permission") {
		t.Errorf("the error is %v, want that of New", err)
	}
}
