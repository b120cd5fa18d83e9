package postgres

import (
	"cmp"
	"net"
	"net/netip"
	"net/url"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// secure makes the connections of a parsed URL what they are here, which is more than libpq's
// default. If neither the URL nor PGSSLMODE says how TLS is used, it is verified: sslmode=prefer
// would send the password to whoever answers. And a password is not sent in clear text where TLS is
// not certain, unless require_auth says so.
//
// Servers on this machine are left out of the first: nobody else is on the way, and few have a
// certificate for localhost.
func secure(text string, cc *pgx.ConnConfig) {
	tried := append([]*pgconn.FallbackConfig{{Host: cc.Host, Port: cc.Port, TLSConfig: cc.TLSConfig}},
		cc.Fallbacks...)
	encrypted := false
	for _, f := range tried {
		encrypted = encrypted || f.TLSConfig != nil
	}
	// Without any, a service file says sslmode=disable, or all hosts are sockets.
	if encrypted && !saysMode(text) {
		kept := tried[:0]
		for _, f := range tried {
			if t := f.TLSConfig; !here(f.Host, f.Port) {
				if t == nil {
					continue
				}
				if t.InsecureSkipVerify && t.VerifyPeerCertificate == nil {
					t = t.Clone()
					t.InsecureSkipVerify, t.ServerName = false, f.Host
				}
				f = &pgconn.FallbackConfig{Host: f.Host, Port: f.Port, TLSConfig: t}
			}
			kept = append(kept, f)
		}
		tried = kept
		cc.Host, cc.Port, cc.TLSConfig = tried[0].Host, tried[0].Port, tried[0].TLSConfig
		cc.Fallbacks = tried[1:]
	}
	for _, f := range tried {
		if network, _ := pgconn.NetworkAddress(f.Host, f.Port); network != "unix" && f.TLSConfig == nil {
			cc.RequireAuth = cmp.Or(cc.RequireAuth, "!password")
		}
	}
}

// saysMode tells whether the URL or the environment says how TLS is used.
func saysMode(text string) bool {
	u, err := url.Parse(text)
	return os.Getenv("PGSSLMODE") != "" || err == nil && u.Query().Get("sslmode") != ""
}

// here tells whether a host is this machine.
func here(host string, port uint16) bool {
	network, address := pgconn.NetworkAddress(host, port)
	if network == "unix" || host == "localhost" {
		return true
	}
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.Unmap().IsLoopback()
}
