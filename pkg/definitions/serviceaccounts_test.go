package definitions

import (
	"slices"
	"testing"
)

// TestIssuers has issuers that kube-apiserver takes, and others.
func TestIssuers(t *testing.T) {
	for _, good := range [][]string{nil, {"rowkeeper"}, {DefaultIssuer},
		{"https://new.example.com", "https://old.example.com"}} {
		if err := (ServiceAccounts{Issuers: good}).Validate(); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range [][]string{{""}, {"https://a.example.com", ""}, {"://example.com"},
		{"https://example.com:port"}, slices.Repeat([]string{DefaultIssuer}, 2)} {
		if err := (ServiceAccounts{Issuers: bad}).Validate(); err == nil {
			t.Errorf("%q are taken", bad)
		}
	}
}
