package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
)

// fakeKeys opens what fakeSeal has sealed by one of the keys.
type fakeKeys []string

func fakeSeal(provider, key, object string) string {
	return "k8s:enc:" + provider + ":v1:" + key + ":" + object
}

func (f fakeKeys) TransformFromStorage(_ context.Context, data []byte,
	of value.Context) ([]byte, bool, error) {
	for _, key := range f {
		if strings.HasSuffix(string(data), ":"+key+":"+string(of.AuthenticatedData())) {
			return nil, false, nil
		}
	}
	return nil, false, errors.New("no such key")
}

func (f fakeKeys) TransformToStorage(context.Context, []byte, value.Context) ([]byte, error) {
	return nil, errors.New("nothing is written")
}

// fakeTransformers are those of resources. All others are not encrypted.
type fakeTransformers map[string]fakeKeys

func (f fakeTransformers) TransformerForResource(r schema.GroupResource) value.Transformer {
	if keys, ok := f[r.String()]; ok {
		return keys
	}
	return identity.NewEncryptCheckTransformer()
}

func TestCheckEncryption(t *testing.T) {
	things := func(n int) string { return fmt.Sprintf("example.com/things/default/%02d", n) }
	for name, tc := range map[string]struct {
		stored map[string]string // a key, and by what key it is sealed
		keys   fakeTransformers
		want   string
	}{
		"nothing": {nil, nil, ""},
		"plain":   {map[string]string{things(1): "", "secrets/default/a": ""}, nil, ""},
		"no keys": {map[string]string{"apps/jobs/x/a": "", things(1): "one"}, nil,
			`the objects below /registry/example.com/things are encrypted by aesgcm with the key ` +
				`"one": identity transformer`},
		"a key for others": {map[string]string{things(1): "one"}, fakeTransformers{"secrets": {"one"}},
			"identity transformer"},
		"the key":      {map[string]string{things(1): "one"}, fakeTransformers{"things.example.com": {"one"}}, ""},
		"another name": {map[string]string{things(1): "one"}, fakeTransformers{"things.example.com": {"two"}}, "no such key"},
		"the core group": {map[string]string{"secrets/default/a": "one"},
			fakeTransformers{"secrets": {"one"}}, ""},
		"the core group, without": {map[string]string{"secrets/default/a": "one"},
			fakeTransformers{"secrets": {"two"}}, "below /registry/secrets/default are encrypted by " +
				`aesgcm with the key "one": no such key`},
		"no namespace": {map[string]string{"namespaces/default": "one"},
			fakeTransformers{"namespaces": {"one"}}, ""},
		"no namespace, without": {map[string]string{"namespaces/default": "one"}, nil,
			"below /registry/namespaces are"},
		"a group without a dot": {map[string]string{"apps/things/default/a": "one"},
			fakeTransformers{"things.apps": {"one"}}, ""},
		"one of two is damaged": {map[string]string{things(1): "damaged", things(2): "one"},
			fakeTransformers{"things.example.com": {"one"}}, ""},
		"one is damaged, alone in its namespace": {map[string]string{"secrets/a/x": "damaged",
			"secrets/b/y": "one"}, fakeTransformers{"secrets": {"one"}}, ""},
		"one is damaged, and others have another key": {map[string]string{"secrets/a/x": "damaged",
			"secrets/b/y": "two"}, fakeTransformers{"secrets": {"one", "two"}}, "no such key"},
		"a key of another resource": {map[string]string{"secrets/a/x": "one", "volumes/b/y": "one"},
			fakeTransformers{"secrets": {"one"}}, "below /registry/volumes/b are encrypted"},
		"all are damaged": {map[string]string{things(1): "damaged"},
			fakeTransformers{"things.example.com": {"one"}}, "no such key"},
		"an old key": {map[string]string{things(1): "two", things(2): "one"},
			fakeTransformers{"things.example.com": {"two"}}, `with the key "one"`},
		"beyond what is looked at": {map[string]string{things(1): "", things(2): "", things(3): "",
			things(4): "", things(5): "", things(6): "", things(7): "", things(8): "", things(9): "",
			things(10): "", things(11): "one"}, nil, ""},
		"a key service that is away": {map[string]string{things(1): "kms"},
			fakeTransformers{"things.example.com": {}}, ""},
		"no key service": {map[string]string{things(1): "kms"}, nil, "by kms with the key"},
	} {
		t.Run(name, func(t *testing.T) {
			store := memory(t)
			for key, by := range tc.stored {
				key = "/registry/" + key
				object := map[string]string{"": "{}", "one": fakeSeal("aesgcm", "one", key),
					"two":     fakeSeal("aesgcm", "two", key),
					"damaged": fakeSeal("aesgcm", "one", "of another key"),
					"kms":     fakeSeal("kms", "service", key)}[by]
				if _, err := database.Engine(store.db).Commit(t.Context(), contract.Mutation{
					Key: contract.Key(key), Value: []byte(object)}); err != nil {
					t.Fatal(err)
				}
			}
			var keys value.ResourceTransformers
			if tc.keys != nil {
				keys = tc.keys
			}
			err := store.CheckEncryption(t.Context(), "", keys)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if err := store.CheckEncryption(t.Context(), "/other", nil); err != nil {
				t.Errorf("below another prefix: %v", err)
			}
		})
	}
}

// Ten thousand namespaces of one resource are not all looked at.
func TestCheckEncryptionOfManyNamespaces(t *testing.T) {
	store := memory(t)
	put := func(key, object string) {
		t.Helper()
		if _, err := database.Engine(store.db).Commit(t.Context(), contract.Mutation{
			Key: contract.Key("/registry/" + key), Value: []byte(object)}); err != nil {
			t.Fatal(err)
		}
	}
	for n := range mostNamespaces {
		put(fmt.Sprintf("secrets/n%02d/a", n), "{}")
	}
	put("secrets/n99/a", fakeSeal("aesgcm", "one", ""))
	if err := store.CheckEncryption(t.Context(), "", nil); err != nil {
		t.Error(err)
	}
	// The object after them is.
	put("volumes/a", fakeSeal("aesgcm", "one", ""))
	if err := store.CheckEncryption(t.Context(), "", nil); err == nil ||
		!strings.Contains(err.Error(), "/registry/volumes") {
		t.Error(err)
	}
}
