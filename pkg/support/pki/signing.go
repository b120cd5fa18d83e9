package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// TokenLifetime is how long a token is valid at most.
	TokenLifetime = CertificateLifetime
	// KeyPublication is for how long a key that signs tokens is published before it signs. Whoever
	// checks tokens by the published keys may keep those for so long.
	KeyPublication = 24 * time.Hour
)

// signingType is the type of a key in PEM, and signingFrom the name of its header.
const (
	signingType = "EC PRIVATE KEY"
	signingFrom = "From"
)

// SigningKey signs tokens from a time on, until the next one does.
type SigningKey struct {
	*ecdsa.PrivateKey
	From time.Time
}

// SigningKeys are the keys of all servers of a database, in the order in which they sign. One
// replaces another as certificates do, see [SigningKeys.Renew].
type SigningKeys []SigningKey

// ParseSigningKeys reads what [SigningKeys.PEM] has written.
func ParseSigningKeys(text []byte) (SigningKeys, error) {
	var keys SigningKeys
	for len(bytes.TrimSpace(text)) > 0 {
		block, rest := pem.Decode(text)
		if block == nil || block.Type != signingType {
			return nil, errors.New("there is something else than keys that sign tokens")
		}
		from, err := time.Parse(time.RFC3339, block.Headers[signingFrom])
		if err != nil {
			return nil, fmt.Errorf("cannot tell from when on a key signs tokens: %w", err)
		}
		key, err := x509.ParseECPrivateKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("cannot read a key that signs tokens: %w", err)
		}
		keys, text = append(keys, SigningKey{key, from}), rest
	}
	if len(keys) == 0 {
		return nil, errors.New("there are no keys that sign tokens")
	}
	if !slices.IsSortedFunc(keys, func(a, b SigningKey) int { return a.From.Compare(b.From) }) {
		return nil, errors.New("the keys that sign tokens are in a wrong order")
	}
	return keys, nil
}

// PEM returns the keys as text.
func (k SigningKeys) PEM() ([]byte, error) {
	var text []byte
	for _, key := range k {
		der, err := x509.MarshalECPrivateKey(key.PrivateKey)
		if err != nil {
			return nil, fmt.Errorf("cannot encode a key that signs tokens: %w", err)
		}
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: signingType, Bytes: der,
			Headers: map[string]string{signingFrom: key.From.UTC().Format(time.RFC3339)}})...)
	}
	return text, nil
}

// Current returns the key that signs. There is none among no keys.
func (k SigningKeys) Current(now time.Time) *ecdsa.PrivateKey {
	for i := len(k) - 1; i >= 0; i-- {
		if i == 0 || !now.Before(k[i].From) {
			return k[i].PrivateKey
		}
	}
	return nil
}

// Renew returns the keys as they should be now; fresh tells whether these are others:
//
//   - The first key of all signs at once: nobody has another one.
//   - When the newest key has signed for two thirds of [CertificateLifetime], another one is made.
//     It signs after [KeyPublication]. All keys are accepted from when they are made.
//   - A key goes when its successor has signed for [TokenLifetime]: then its last token has ended.
//     It stays for [Backdate] longer, since clocks differ, and a server may take some time between
//     its choice of a key and its answer.
func (k SigningKeys) Renew(now time.Time) (keys SigningKeys, fresh bool, err error) {
	keys = k
	for len(keys) > 1 && now.After(keys[1].From.Add(TokenLifetime+Backdate)) {
		keys, fresh = keys[1:], true
	}
	from := now
	if len(keys) > 0 {
		if newest := keys[len(keys)-1]; now.Before(newest.From.Add(CertificateLifetime * 2 / 3)) {
			return keys, fresh, nil
		}
		from = now.Add(KeyPublication)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, false, fmt.Errorf("cannot make a key that signs tokens: %w", err)
	}
	// What is stored has seconds. A key never signs earlier than it was said.
	from = from.Add(time.Second - 1).Truncate(time.Second)
	return append(slices.Clip(keys), SigningKey{key, from}), true, nil
}
