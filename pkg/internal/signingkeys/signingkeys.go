// Package signingkeys is for servers that make tokens for service accounts. It keeps the keys by
// which the tokens are signed. All servers of a database have the same ones, since a token of one
// is used at another.
//
// # Where they are
//
// The servers of a database share nothing but the database, so the keys are there: in a Secret,
// which no API serves. Who may read every Secret, as cert-manager may, could otherwise sign a token
// for every account. An EncryptionConfiguration encrypts the keys as it encrypts Secrets. Each
// round writes them anew if they are encrypted by an older key.
//
// So a backup has the keys, as it has all Secrets. A database that is restored has those of the
// backup: tokens signed by a later key end, and their users ask for new ones. A copy of a database
// accepts the tokens of the original one.
//
// Whoever wants the keys elsewhere gives files: then nothing is made, stored or replaced.
//
// # Why every server accepts every token
//
// A round, [Keys.Renew], reads the keys, and writes what is missing or replaced, by one update of
// the version that was read: of the servers that write at a time one succeeds, and the others take
// what it has written. Each server does a round before it is ready, and every [Interval].
//
//   - A server signs by what is stored at that time: it does a round before each token. So no
//     server signs by a key that others have dropped, whatever it remembers.
//   - A key is stored for a day before it signs, see [pki.SigningKeys.Renew]. So every server has
//     read it by then, and so have others who read the published keys once a day.
//   - The first key of all signs at once. A server that is ready has read it. If the keys are
//     deleted while servers run, they make a first one again; a server that meets a key which it
//     does not know does a round, so that it knows what the others have made.
//   - What is not stored any more is not accepted after the next round. So to delete the keys, as
//     when somebody has stolen them, ends all tokens within an interval.
//
// A token is checked by the keys of the last round, without a look at the database. What that costs
// is a minute until deleted keys are refused.
package signingkeys

import (
	"context"
	"crypto"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/internal/reserved"
	"github.com/rowkeeper/rowkeeper/pkg/internal/unserved"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
	"github.com/rowkeeper/rowkeeper/storage"
)

// Interval is the time between two rounds.
const Interval = time.Minute

// name is that of the Secret, and entry where the keys are in it.
const name, entry = "service-accounts", "keys.pem"

// secrets is how the Secret is stored.
var secrets = unserved.Kind{
	Resource:    reserved.SigningKeys,
	Version:     corev1.SchemeGroupVersion,
	AddToScheme: corev1.AddToScheme,
	New:         func() runtime.Object { return &corev1.Secret{} },
	NewList:     func() runtime.Object { return &corev1.SecretList{} },
}

// Files are those of a user who keeps the keys elsewhere.
type Files struct {
	// Signing has the private key that signs, in place of stored ones. It may be "".
	Signing string
	// Accepted have keys, public or private ones, by which tokens are accepted, too.
	Accepted []string
}

// Keys are the keys. They implement definitions.SigningKeys.
type Keys struct {
	store   apistorage.Interface // nil if a file has the key that signs
	destroy func()
	clock   clock.PassiveClock
	signing crypto.Signer
	others  []crypto.PublicKey

	mu     sync.Mutex
	stored pki.SigningKeys // those of the last round
}

// Open reads the files. Of the stored keys nothing is read before the first round. The options were
// applied to the configuration.
func Open(stored *options.StorageOptions, c *genericapiserver.Config, db *storage.Store,
	files Files, clock clock.PassiveClock) (*Keys, error) {
	k := &Keys{clock: clock, destroy: func() {}}
	for _, file := range files.Accepted {
		keys, err := keyutil.PublicKeysFromFile(file)
		if err != nil {
			return nil, fmt.Errorf("cannot use the keys in %s: %w", file, err)
		}
		for _, one := range keys {
			k.others = append(k.others, one)
		}
	}
	if files.Signing != "" {
		key, err := keyutil.PrivateKeyFromFile(files.Signing)
		if err != nil {
			return nil, fmt.Errorf("cannot sign with the key in %s: %w", files.Signing, err)
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return nil, fmt.Errorf("cannot sign with the key in %s, a %T", files.Signing, key)
		}
		k.signing = signer
		return k, nil
	}
	var err error
	if k.store, k.destroy, err = secrets.Open(stored, c, db); err != nil {
		return nil, fmt.Errorf("cannot store the keys of service accounts: %w", err)
	}
	return k, nil
}

// Close releases what the keys are stored by.
func (k *Keys) Close() { k.destroy() }

// Renew does a round.
func (k *Keys) Renew(ctx context.Context) error {
	if k.store == nil {
		return nil
	}
	k.mu.Lock() // rounds come one after the other, so that none takes back what another has read
	defer k.mu.Unlock()
	keys, err := k.round(ctx)
	if err != nil {
		return fmt.Errorf("cannot read or write the keys of service accounts: %w", err)
	}
	k.stored = keys
	return nil
}

func (k *Keys) round(ctx context.Context) (keys pki.SigningKeys, err error) {
	err = k.store.GuaranteedUpdate(ctx, secrets.Key(name), &corev1.Secret{}, true, nil,
		apistorage.SimpleUpdate(func(existing runtime.Object) (runtime.Object, error) {
			secret, ok := existing.(*corev1.Secret)
			if !ok {
				return nil, fmt.Errorf("they are in a %T", existing)
			}
			var before pki.SigningKeys
			var err error
			if secret.ResourceVersion == "" {
				secret.Name, secret.Type = name, corev1.SecretTypeOpaque
				rest.FillObjectMetaSystemFields(secret)
			} else if before, err = pki.ParseSigningKeys(secret.Data[entry]); err != nil {
				return nil, err
			}
			var fresh bool
			if keys, fresh, err = before.Renew(k.clock.Now()); err != nil || !fresh {
				return secret, err
			}
			text, err := keys.PEM()
			secret.Data = map[string][]byte{entry: text}
			return secret, err
		}), nil)
	return keys, err
}

// Signer does a round, and returns the key that signs a token now.
func (k *Keys) Signer(ctx context.Context) (crypto.Signer, error) {
	if k.signing != nil {
		return k.signing, nil
	}
	if err := k.Renew(ctx); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stored.Current(k.clock.Now()), nil
}

// Accepted returns the keys by which tokens are accepted, as of the last round. Each is there once,
// though a file may have the key that signs, as kube-apiserver needs it.
func (k *Keys) Accepted() (keys []crypto.PublicKey) {
	all := slices.Clone(k.others)
	if k.signing != nil {
		all = append(all, k.signing.Public())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range k.stored {
		all = append(all, key.Public())
	}
	for _, key := range all {
		if !slices.ContainsFunc(keys, key.(interface{ Equal(crypto.PublicKey) bool }).Equal) {
			keys = append(keys, key)
		}
	}
	return keys
}
