package dbtest

import (
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
)

// Authority makes the certificates of servers and clients in tests.
type Authority struct{ pair *pki.Pair }

// NewAuthority makes an authority.
func NewAuthority(tb testing.TB) Authority {
	tb.Helper()
	now := time.Now()
	pair, err := pki.NewAuthority("authority", now.Add(-24*time.Hour), now.Add(24*time.Hour))
	if err != nil {
		tb.Fatal(err)
	}
	return Authority{pair}
}

// PEM returns the authority's certificate.
func (a Authority) PEM(tb testing.TB) []byte {
	tb.Helper()
	certPEM, _, err := a.pair.PEM()
	if err != nil {
		tb.Fatal(err)
	}
	return certPEM
}

// Client makes a client's certificate and its key, valid for an hour from this long after now.
func (a Authority) Client(tb testing.TB, after time.Duration,
	name string) (certPEM, keyPEM []byte) {
	tb.Helper()
	return a.sign(tb, pki.Client(name), after)
}

func (a Authority) sign(tb testing.TB, t pki.Template,
	after time.Duration) (certPEM, keyPEM []byte) {
	tb.Helper()
	from := time.Now().Add(after)
	pair, err := a.pair.Sign(t, from.Add(-time.Minute), from.Add(time.Hour))
	if err == nil {
		certPEM, keyPEM, err = pair.PEM()
	}
	if err != nil {
		tb.Fatal(err)
	}
	return certPEM, keyPEM
}

// Server makes what a server for hosts needs, valid like a certificate of Client.
func (a Authority) Server(tb testing.TB, after time.Duration, hosts ...string) *dbserver.TLS {
	tb.Helper()
	certPEM, keyPEM := a.sign(tb, pki.Server(hosts...), after)
	return &dbserver.TLS{CA: a.PEM(tb), Cert: certPEM, Key: keyPEM}
}
