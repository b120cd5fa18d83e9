package standalone

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
)

// AdminUser is the user that the administrator's certificate names.
const AdminUser = "admin"

// PKI is the authority in a data directory, the serving certificate and the administrator's
// certificate.
type PKI struct {
	dir   *Dir
	names Names
	clock clock.WithTicker
}

// Names are what the serving certificate is for.
type Names struct {
	DNS []string
	IPs []net.IP
}

// NewPKI returns the PKI of a directory. Nothing exists before Ensure was called.
func NewPKI(dir *Dir, names Names, clock clock.WithTicker) *PKI {
	return &PKI{dir: dir, names: names, clock: clock}
}

// AuthorityFile and the others are the files. The authority's file holds the current certificate
// first, and after it its predecessors that are still valid.
func (p *PKI) AuthorityFile() string { return p.dir.Path("pki", "ca.crt") }
func (p *PKI) ServingCert() string   { return p.dir.Path("pki", "serving.crt") }
func (p *PKI) ServingKey() string    { return p.dir.Path("pki", "serving.key") }
func (p *PKI) AdminCert() string     { return p.dir.Path("pki", "admin.crt") }
func (p *PKI) AdminKey() string      { return p.dir.Path("pki", "admin.key") }
func (p *PKI) authorityKey() string  { return p.dir.Path("pki", "ca.key") }

// Ensure makes what is missing, what has come into the last third of its lifetime, and what does
// not fit: a serving certificate for other names, or a certificate of another authority. It tells
// whether it has made anything. Files that are there and cannot be read are an error, never
// replaced.
func (p *PKI) Ensure() (changed bool, err error) {
	authority, changed, err := pki.EnsureAuthority(p.AuthorityFile(), p.authorityKey(), p.clock)
	if err != nil {
		return false, err
	}
	for _, c := range []pki.Certificate{{
		CertFile: p.ServingCert(), KeyFile: p.ServingKey(),
		Template: pki.Template{
			Subject: pkix.Name{CommonName: "rowkeeper"}, DNS: p.names.DNS, IPs: p.names.IPs,
			Usage: x509.ExtKeyUsageServerAuth,
		},
	}, {
		CertFile: p.AdminCert(), KeyFile: p.AdminKey(),
		Template: pki.Client(AdminUser, user.SystemPrivilegedGroup),
	}} {
		fresh, err := authority.Ensure(c)
		if err != nil {
			return false, err
		}
		changed = changed || fresh
	}
	return changed, nil
}

// Renew calls Ensure once an hour until ctx ends, and renewed after something was made. The server
// reloads the files by itself.
func (p *PKI) Renew(ctx context.Context, renewed func() error) {
	ticker := p.clock.NewTicker(time.Hour)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		changed, err := p.Ensure()
		if err == nil && changed {
			err = renewed()
		}
		if err != nil {
			klog.FromContext(ctx).Error(err,
				"Cannot renew the certificates; trying again in an hour")
		}
	}
}
