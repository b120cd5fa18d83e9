package pki

import (
	"crypto/ecdsa"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestSigningKeys lets years pass, in which servers look at the keys every hour, or not for months.
// At any time a token may be signed. Whoever reads the published keys a day before that has its
// key, and it is accepted until it ends.
func TestSigningKeys(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, pause := range map[string]func(*rand.Rand) time.Duration{
		"always":    func(*rand.Rand) time.Duration { return time.Hour },
		"sometimes": func(r *rand.Rand) time.Duration { return time.Duration(r.Int64N(int64(300 * 24 * time.Hour))) },
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			var keys SigningKeys
			made := map[*ecdsa.PrivateKey]time.Time{}
			last := map[*ecdsa.PrivateKey]time.Time{} // when a key signed last
			most := 0
			for now := start; now.Before(start.AddDate(12, 0, 0)); now = now.Add(pause(r)) {
				var fresh bool
				before, err := slices.Clone(keys), error(nil)
				if keys, fresh, err = keys.Renew(now); err != nil {
					t.Fatal(err)
				}
				if same := slices.Equal(before, keys); same == fresh {
					t.Fatalf("%v: fresh is %t, and whether they are the same %t", now, fresh, same)
				}
				for _, key := range keys {
					if _, known := made[key.PrivateKey]; !known {
						made[key.PrivateKey] = now
					}
				}
				for key, signed := range last {
					if now.Before(signed.Add(TokenLifetime)) &&
						!slices.ContainsFunc(keys, func(k SigningKey) bool { return k.Equal(key) }) {
						t.Fatalf("%v: a key is gone that signed at %v", now, signed)
					}
				}
				// A server that has the keys signs until it looks again, or a little later.
				for _, at := range []time.Time{now, now.Add(30 * time.Minute)} {
					current := keys.Current(at)
					if since := at.Sub(made[current]); since < KeyPublication &&
						made[current] != start {
						t.Fatalf("%v: a key signs that was made %s before", at, since)
					}
					last[current] = at
				}
				most = max(most, len(keys))
			}
			if most < 2 || most > 3 || len(made) < 5 {
				t.Errorf("there were up to %d keys at a time, and %d in all", most, len(made))
			}
		})
	}
	if (SigningKeys{}).Current(start) != nil {
		t.Error("among no keys there is one that signs")
	}
}

// TestSigningKeysAsText writes keys and reads them.
func TestSigningKeysAsText(t *testing.T) {
	now := time.Now()
	keys, _, err := SigningKeys(nil).Renew(now)
	if err == nil {
		keys, _, err = keys.Renew(now.Add(CertificateLifetime))
	}
	if err != nil || len(keys) != 2 {
		t.Fatal(len(keys), err)
	}
	text, err := keys.PEM()
	if err != nil {
		t.Fatal(err)
	}
	read, err := ParseSigningKeys(text)
	if err != nil || !slices.EqualFunc(keys, read, func(a, b SigningKey) bool {
		return a.Equal(b.PrivateKey) && a.From.Equal(b.From)
	}) {
		t.Errorf("of %v came %v, %v", keys, read, err)
	}
	swapped, err := SigningKeys{keys[1], keys[0]}.PEM()
	if err != nil {
		t.Fatal(err)
	}
	certPEM, keyPEM, err := mustAuthority(t, now).PEM()
	if err != nil {
		t.Fatal(err)
	}
	for what, wrong := range map[string][]byte{
		"nothing": nil, "a wrong order": swapped, "a certificate": certPEM,
		"a key without a time": keyPEM, "half of a key": text[:len(text)-40],
	} {
		if keys, err := ParseSigningKeys(wrong); err == nil {
			t.Errorf("%s is read as %v", what, keys)
		}
	}
}

func mustAuthority(t *testing.T, now time.Time) *Pair {
	t.Helper()
	a, err := NewAuthority("test", now, now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return a
}
