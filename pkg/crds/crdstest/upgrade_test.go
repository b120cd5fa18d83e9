package crdstest_test

import (
	"compress/gzip"
	"database/sql"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"

	"github.com/rowkeeper/rowkeeper/pkg/crds"
	"github.com/rowkeeper/rowkeeper/pkg/definitions"
	"github.com/rowkeeper/rowkeeper/pkg/example/exampletest"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// withAll is a server with definitions, roles and priorities.
func withAll(c *genericapiserver.RecommendedConfig,
	o definitions.Options) (definitions.Extend, error) {
	o.Roles, o.PriorityAndFairness = true, true
	return crds.Prepare(c, o)
}

// What a server has stored that had strategies of its own for the core API reads back as it
// answered it, and stays at the same keys, in the same versions, when it is written anew. In
// testdata, old.db.gz is such a server's database with the objects of old.yaml, and old.json is
// what the server answered at their paths. Its Events do not expire. Where the first schema changes
// before a release, the database has to be changed, too.
func TestUpgrade(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "state.db")
	unpack(t, "testdata/old.db.gz", file)
	before := stored(t, file)
	content, err := os.ReadFile("testdata/old.json")
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string]map[string]any{}
	if err := json.Unmarshal(content, &answers); err != nil {
		t.Fatal(err)
	}
	s := exampletest.Start(t, testkit.Options{Dir: dir, Definitions: withAll})
	client := kubernetes.NewForConfigOrDie(s.Config).CoreV1().RESTClient()
	for at, answer := range answers {
		content, err := client.Get().AbsPath(at).DoRaw(t.Context())
		if err != nil {
			t.Errorf("%s: %v", at, err)
			continue
		}
		object := map[string]any{}
		if err := json.Unmarshal(content, &object); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(object, answer) {
			t.Errorf("%s was\n%v\nand is\n%v", at, answer, object)
		}
	}
	for at := range answers {
		if _, err := client.Patch(types.MergePatchType).AbsPath(at).Body(
			[]byte(`{"metadata": {"labels": {"again": "written"}}}`)).DoRaw(t.Context()); err != nil {
			t.Errorf("%s cannot be written: %v", at, err)
		}
	}
	s.Stop()
	after := stored(t, file)
	for key, of := range before {
		if after[key] != of {
			t.Errorf("%s was a %v, and is a %v", key, of, after[key])
		}
	}
	// There are more default roles, and service accounts sign in.
	added := regexp.MustCompile(`^/registry/(rbac\.authorization\.k8s\.io/clusterrole.*|` +
		`serviceaccounts/[^/]+/default|rowkeeper\.dev/signing\.keys/service-accounts)$`)
	for key := range after {
		if _, there := before[key]; !there && !added.MatchString(key) {
			t.Errorf("%s was added", key)
		}
	}
}

func unpack(t *testing.T, archive, to string) {
	t.Helper()
	packed, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	content, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := io.Copy(file, content); err != nil {
		t.Fatal(err)
	}
}

// stored returns by their keys of which version and kind the objects in a database are.
func stored(t *testing.T, file string) map[string]metav1.TypeMeta {
	t.Helper()
	db, err := sql.Open("sqlite", file)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(t.Context(), "SELECT l.key, g.value FROM rowkeeper_live l "+
		"JOIN rowkeeper_log g ON g.revision = l.revision")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	all := map[string]metav1.TypeMeta{}
	for rows.Next() {
		var key, value []byte
		var of metav1.TypeMeta
		if err := rows.Scan(&key, &value); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(value, &of); err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		all[string(key)] = of
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}
