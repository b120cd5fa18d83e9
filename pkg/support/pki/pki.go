// Package pki makes certificates, for package options, server programs and tests. No other does. A
// certificate is renewed in the last third of its lifetime ([RenewAt]): package standalone looks at
// its certificates every hour, and package rotation in each of its rounds.
//
// A [Pair] is in memory, and so is a [Chain], which is renewed before it expires. An [Authority]
// keeps itself and what it signs in files. Everything can be asked for again and again: what exists
// and fits is left alone. Several processes must not do so with the same files at the same time.
package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/utils/clock"
)

const (
	// AuthorityLifetime is how long an authority is valid.
	AuthorityLifetime = 10 * 365 * 24 * time.Hour
	// CertificateLifetime is how long a certificate is valid.
	CertificateLifetime = 365 * 24 * time.Hour
	// Backdate makes a new certificate valid for clients whose clock is behind.
	Backdate = time.Hour
)

// Authority signs certificates that are kept in files.
type Authority struct {
	pair  *Pair
	clock clock.PassiveClock
}

// Certificate says what a certificate is for, and where it is kept.
type Certificate struct {
	CertFile, KeyFile string
	Template
}

// EnsureAuthority returns the authority of the files. It makes one if the files do not exist, or if
// the authority has come into the last third of its lifetime; fresh tells so. The file of
// certificates has the current one first, and after it its predecessors that are still valid. So a
// client that trusts the file trusts what they have signed, too. Files that are there and cannot be
// read are an error, never replaced.
func EnsureAuthority(certFile, keyFile string,
	clock clock.PassiveClock) (a *Authority, fresh bool, err error) {
	chain, err := readPair(certFile, keyFile)
	if err != nil {
		return nil, false, err
	}
	chain, fresh, err = chain.Authority(clock.Now(), AuthorityLifetime)
	if err == nil && fresh {
		err = writePair(certFile, keyFile, chain)
	}
	if err != nil {
		return nil, false, err
	}
	return &Authority{pair: chain.Pair(), clock: clock}, fresh, nil
}

// ReadAuthority returns the authority of the files, and changes nothing, so that it can be called
// while a server keeps the files. The error is that of the file system if there is no authority.
func ReadAuthority(certFile, keyFile string) (*Pair, error) {
	chain, err := loadPair(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	if len(chain.Certs) == 0 {
		return nil, &fs.PathError{Op: "open", Path: certFile, Err: fs.ErrNotExist}
	}
	return chain.Pair(), nil
}

// Pair is the authority's certificate and key.
func (a *Authority) Pair() *Pair { return a.pair }

// Ensure makes a certificate if its files do not exist, if it has come into the last third of its
// lifetime, or if it does not fit: if it is for other names, or of another authority; fresh tells
// so. Files that are there and cannot be read are an error, never replaced.
func (a *Authority) Ensure(wanted Certificate) (fresh bool, err error) {
	chain, err := readPair(wanted.CertFile, wanted.KeyFile)
	if err != nil || chain.Serves(wanted.Template, a.pair, a.clock.Now()) {
		return false, err
	}
	return true, a.Issue(wanted)
}

// Issue makes a certificate, and replaces the one in the files, if there is one.
func (a *Authority) Issue(wanted Certificate) error {
	pair, err := a.pair.Issue(wanted.Template, a.clock.Now(), CertificateLifetime)
	if err != nil {
		return err
	}
	return pair.Write(wanted.CertFile, wanted.KeyFile)
}

// fits tells whether a certificate is for the wanted names.
func (w Template) fits(c *x509.Certificate) bool {
	return slices.Equal(c.DNSNames, w.DNS) && slices.EqualFunc(c.IPAddresses, w.IPs, net.IP.Equal)
}

// RenewAt is when a certificate comes into the last third of its lifetime.
func RenewAt(c *x509.Certificate) time.Time {
	return c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3)
}

// good tells whether a certificate is valid, and not in the last third of its lifetime.
func good(c *x509.Certificate, now time.Time) bool {
	return !now.Before(c.NotBefore) && !now.After(RenewAt(c))
}

// readPair reads what writePair has written. It returns none if neither file exists. If writePair
// was interrupted, it finishes that work first.
func readPair(certFile, keyFile string) (Chain, error) {
	if err := replacePair(certFile, keyFile); err != nil {
		return Chain{}, fmt.Errorf("cannot finish storing a certificate: %w", err)
	}
	return loadPair(certFile, keyFile)
}

// loadPair reads a pair as it is.
func loadPair(certFile, keyFile string) (Chain, error) {
	certPEM, certErr := os.ReadFile(certFile)
	keyPEM, keyErr := os.ReadFile(keyFile)
	if errors.Is(certErr, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist) {
		return Chain{}, nil
	}
	var chain Chain
	var err error
	switch {
	case certErr != nil:
		err = unusable(certFile, certErr)
	case keyErr != nil:
		err = unusable(keyFile, keyErr)
	default:
		chain, err = ParseChain(certFile, certPEM, keyFile, keyPEM)
	}
	if err != nil {
		return Chain{}, fmt.Errorf("%w; mend it, or remove both %s and %s to have new ones made",
			err, certFile, keyFile)
	}
	return chain, nil
}

// next is the end of the names of a pair's files until both are written.
const next = ".next"

// writePair stores a pair, so that an interruption at any time leaves the old pair or the new one.
// It writes both files under other names, the certificate last: once that file exists, the new pair
// is complete, and replacePair needs no more than these files to put it in place.
func writePair(certFile, keyFile string, chain Chain) error {
	certPEM, keyPEM, err := chain.PEM()
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		// An earlier pair may be complete and not in place. Its certificate does not fit the new
		// key.
		func() error { return ignoreMissing(os.Remove(certFile + next)) },
		func() error { return WriteFile(keyFile+next, keyPEM, 0o600) },
		func() error { return WriteFile(certFile+next, certPEM, 0o644) },
		func() error { return replacePair(certFile, keyFile) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("cannot store a certificate: %w", err)
		}
	}
	return nil
}

// replacePair puts a pair in place that writePair completed, if there is one. It can be repeated
// after an interruption: the key may be in place already, the certificate comes last.
func replacePair(certFile, keyFile string) error {
	if _, err := os.Stat(certFile + next); err != nil {
		return ignoreMissing(err)
	}
	if err := ignoreMissing(os.Rename(keyFile+next, keyFile)); err != nil {
		return err
	}
	return os.Rename(certFile+next, certFile)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// WriteFile replaces a file by another content at once, so that a reader sees the old or the new
// one. It makes the directory, for its owner only, if there is none.
func WriteFile(name string, content []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	if _, err := temp.Write(content); err != nil {
		temp.Close()
		return err
	}
	if err := errors.Join(temp.Chmod(mode), temp.Sync(), temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), name)
}
