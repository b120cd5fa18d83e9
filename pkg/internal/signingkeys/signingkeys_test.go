package signingkeys

import (
	"context"
	"crypto"
	"crypto/x509"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	"k8s.io/client-go/util/keyutil"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
	"github.com/rowkeeper/rowkeeper/storage/storagetest"
)

// fixture is a database with servers, whose clock is one.
type fixture struct {
	*testing.T
	file  string
	store *storage.Store
	clock *clocktesting.FakePassiveClock
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	file := filepath.Join(t.TempDir(), "state.db")
	store, err := storage.Open(t.Context(), storage.Config{URL: "sqlite://" + file,
		Drivers: []storage.Driver{sqlite.Driver}, Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return &fixture{t, file, store, clocktesting.NewFakePassiveClock(time.Now())}
}

// open makes the keys of one more server. Its configuration may encrypt what is stored.
func (f *fixture) open(encryption string) (*Keys, error) {
	f.Helper()
	o := options.NewStorageOptions(storage.DefaultPrefix, runtime.NewScheme(),
		serializer.NewCodecFactory(runtime.NewScheme()))
	c := genericapiserver.NewConfig(serializer.NewCodecFactory(runtime.NewScheme()))
	if encryption != "" {
		o.EncryptionConfig = filepath.Join(f.TempDir(), "encryption.yaml")
		if err := os.WriteFile(o.EncryptionConfig, []byte(encryption), 0o600); err != nil {
			f.Fatal(err)
		}
	}
	if err := o.ApplyTo(c, f.store); err != nil {
		return nil, err
	}
	k, err := Open(o, c, f.store, Files{}, f.clock)
	if err != nil {
		return nil, err
	}
	f.Cleanup(k.Close)
	return k, k.Renew(f.Context())
}

// stored is how the keys are stored.
func (f *fixture) stored() (value string) {
	f.Helper()
	db, err := sql.Open("sqlite", f.file)
	if err != nil {
		f.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRowContext(f.Context(), "SELECT g.value FROM rowkeeper_live l "+
		"JOIN rowkeeper_log g ON g.revision = l.revision WHERE l.key = ?",
		[]byte(storage.DefaultPrefix+secrets.Key(name))).Scan(&value); err != nil {
		f.Fatal(err)
	}
	return value
}

func (f *fixture) must(k *Keys, err error) *Keys {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
	return k
}

func (f *fixture) signer(k *Keys) crypto.PublicKey {
	f.Helper()
	signer, err := k.Signer(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	return signer.Public()
}

func equal(a, b crypto.PublicKey) bool {
	return a.(interface{ Equal(crypto.PublicKey) bool }).Equal(b)
}

// accepts tells whether a server accepts what a key has signed, as it knows without a look.
func accepts(k *Keys, key crypto.PublicKey) bool {
	for _, one := range k.Accepted() {
		if equal(one, key) {
			return true
		}
	}
	return false
}

// TestServers: servers that start at the same time have one key. It is replaced once it is old, and
// servers that look every minute accept at any time what any of them signs.
func TestServers(t *testing.T) {
	f := newFixture(t)
	servers := make([]*Keys, 5)
	var wg sync.WaitGroup
	for i := range servers {
		wg.Go(func() {
			k, err := f.open("")
			if err != nil {
				t.Error(err)
			}
			servers[i] = k
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	first := f.signer(servers[0])
	for _, k := range servers {
		if !equal(f.signer(k), first) || len(k.Accepted()) != 1 {
			t.Fatalf("a server has other keys: %v", k.Accepted())
		}
	}
	signers := map[string]bool{}
	step := 6 * time.Hour
	for range int(2 * pki.TokenLifetime / step) {
		f.clock.SetTime(f.clock.Now().Add(step))
		// One signs before the others look; they have looked six hours ago.
		key := f.signer(servers[0])
		for _, k := range servers {
			if !accepts(k, key) {
				t.Fatalf("%v: a server does not know the key by which another signs", f.clock.Now())
			}
			if err := k.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		text, err := x509.MarshalPKIXPublicKey(key)
		if err != nil {
			t.Fatal(err)
		}
		signers[string(text)] = true
	}
	if len(signers) != 3 {
		t.Errorf("%d keys have signed", len(signers))
	}
	if accepts(servers[1], first) {
		t.Error("a key is accepted after its last token has ended")
	}
}

// TestDeleted: keys that are deleted are not accepted after the next round.
func TestDeleted(t *testing.T) {
	f := newFixture(t)
	one, other := f.must(f.open("")), f.must(f.open(""))
	first := f.signer(one)
	if err := storagetest.Restore(t.Context(), f.store,
		storagetest.Nothing(storage.DefaultPrefix)); err != nil {
		t.Fatal(err)
	}
	if err := other.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if accepts(other, first) || equal(f.signer(one), first) || accepts(one, first) {
		t.Error("a key is accepted that was deleted")
	}
}

// TestUnreadable: keys that cannot be read are an error, and are not replaced.
func TestUnreadable(t *testing.T) {
	f := newFixture(t)
	k := f.must(f.open(""))
	first := f.signer(k)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := k.Signer(ctx); err == nil || !accepts(k, first) {
		t.Errorf("a database that does not answer: %v, and the keys are %v", err, k.Accepted())
	}
}

// spoil writes something else where the keys are, as somebody does who has the database.
func (f *fixture) spoil(value string) {
	f.Helper()
	db, err := sql.Open("sqlite", "file:"+f.file+"?_pragma=busy_timeout(10000)")
	if err != nil {
		f.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(f.Context(), "UPDATE rowkeeper_log SET value = ? WHERE revision = "+
		"(SELECT revision FROM rowkeeper_live WHERE key = ?)", []byte(value),
		[]byte(storage.DefaultPrefix+secrets.Key(name))); err != nil {
		f.Fatal(err)
	}
}

// TestSpoilt: keys that are not what a server has written are an error that shows none of them.
// Nobody replaces them, so that whoever mends them does not find other ones.
func TestSpoilt(t *testing.T) {
	secret := func(data string) string {
		return `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"service-accounts"},"data":` +
			data + `}`
	}
	f := newFixture(t)
	k := f.must(f.open(""))
	first, good := f.signer(k), f.stored()
	for what, value := range map[string]string{
		"no text":           "\x00\x01",
		"half of the text":  good[:len(good)/2],
		"another kind":      `{"kind":"ConfigMap","apiVersion":"v1","data":{"keys.pem":"x"}}`,
		"no keys":           secret(`{}`),
		"keys of no form":   secret(`{"keys.pem":"c2VjcmV0"}`),
		"keys of no base64": secret(`{"keys.pem":"-----secret"}`),
	} {
		f.spoil(value)
		if _, err := k.Signer(t.Context()); err == nil || !accepts(k, first) {
			t.Errorf("%s: %v, and the keys are %v", what, err, k.Accepted())
		}
		_, err := f.open("")
		if err == nil || strings.Contains(err.Error(), "c2VjcmV0") ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: a server that starts says %v", what, err)
		}
		if is := f.stored(); is != value {
			t.Errorf("%s was replaced by %s", what, is)
		}
	}
	f.spoil(good)
	if !equal(f.signer(f.must(f.open(""))), first) {
		t.Error("keys that were mended do not sign")
	}
}

// TestClocks: a server whose clock is years away, before or after, takes no key from the others,
// and gives them none by which they sign earlier than the others have read it.
func TestClocks(t *testing.T) {
	for _, off := range []time.Duration{-3 * pki.TokenLifetime, -time.Hour, time.Hour,
		3 * pki.TokenLifetime} {
		f := newFixture(t)
		right := f.must(f.open(""))
		first, now := f.signer(right), f.clock.Now()
		f.clock.SetTime(now.Add(off))
		wrong := f.must(f.open(""))
		for range 3 {
			if !accepts(right, f.signer(wrong)) {
				t.Errorf("%s: a server signs by a key that another does not know", off)
			}
			f.clock.SetTime(f.clock.Now().Add(time.Hour))
			if err := wrong.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		f.clock.SetTime(now)
		if !equal(f.signer(right), first) || !accepts(wrong, first) {
			t.Errorf("%s: the key is another one after a server's clock was wrong", off)
		}
	}
}

// TestKeysOfFiles: a key that is in several files, as kube-apiserver needs it, is there once.
func TestKeysOfFiles(t *testing.T) {
	f := newFixture(t)
	pair, err := pki.SelfSigned(pki.Server("test"), f.clock.Now(), f.clock.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	text, err := keyutil.MarshalPrivateKeyToPEM(pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := Open(nil, nil, nil, Files{Signing: file, Accepted: []string{file, file}}, f.clock)
	if err != nil || len(k.Accepted()) != 1 || k.Renew(t.Context()) != nil {
		t.Errorf("the keys are %v, %v", k, err)
	}
}

// TestOwnTransformers: a program that encrypts Secrets in a way of its own encrypts the keys.
func TestOwnTransformers(t *testing.T) {
	f := newFixture(t)
	o := options.NewStorageOptions(storage.DefaultPrefix, runtime.NewScheme(),
		serializer.NewCodecFactory(runtime.NewScheme()))
	c := genericapiserver.NewConfig(serializer.NewCodecFactory(runtime.NewScheme()))
	c.ResourceTransformers = encryptionconfig.StaticTransformers{
		{Resource: "secrets"}: value.NewPrefixTransformers(nil,
			value.PrefixTransformer{Prefix: []byte("own:"), Transformer: identity.NewEncryptCheckTransformer()}),
	}
	if err := o.ApplyTo(c, f.store); err != nil {
		t.Fatal(err)
	}
	k, err := Open(o, c, f.store, Files{}, f.clock)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if err := k.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if is := f.stored(); !strings.HasPrefix(is, "own:") {
		t.Errorf("what is stored is not as Secrets are: %.60q", is)
	}
}

const encryption = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
`

// TestEncrypted: the keys are encrypted as Secrets, and anew once Secrets are by another key.
func TestEncrypted(t *testing.T) {
	const old = "  - secretbox: {keys: [{name: old, secret: " +
		"c2VjcmV0IGtleSB0aGF0IGhhcyAzMiBieXRlcyEhISE=}]}\n"
	const young = "  - secretbox: {keys: [{name: young, secret: " +
		"YW5vdGhlciBrZXkgdGhhdCBoYXMgMzIgYnl0ZXMhISE=}]}\n"
	f := newFixture(t)
	plain := f.must(f.open(""))
	key := f.signer(plain)
	for _, step := range []struct{ config, want string }{
		{"", `"keys.pem"`},
		{encryption + old + "  - identity: {}\n", "k8s:enc:secretbox:v1:old:"},
		{encryption + young + old, "k8s:enc:secretbox:v1:young:"},
		{encryption + young, "k8s:enc:secretbox:v1:young:"},
	} {
		if !equal(f.signer(f.must(f.open(step.config))), key) {
			t.Error("there is another key")
		}
		if is := f.stored(); !strings.Contains(is, step.want) {
			t.Errorf("what is stored has not %q: %.60q", step.want, is)
		}
	}
	if _, err := f.open(encryption + old); err == nil {
		t.Error("a server without the key by which the keys are encrypted starts")
	}
	if _, err := f.open(""); err == nil {
		t.Error("a server that decrypts nothing starts")
	}
}
