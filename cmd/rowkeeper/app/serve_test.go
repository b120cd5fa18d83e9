package app

import (
	"bytes"
	"strings"
	"testing"
)

func TestServeRefusesFlagsOfTheOtherMode(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"", "there is nothing to serve: give --enable-crds"},
		{"--aggregated --example", "--example is only for servers that are not aggregated"},
		{"--aggregated", "no database is named"},
		{"--aggregated --database=memory:", "an aggregated server needs --tls-cert-file"},
		{"--aggregated --database=memory: --tls-cert-file=c --tls-private-key-file=k --data-dir=d",
			"--data-dir is only for servers that are not aggregated"},
		{"--aggregated --database=memory: --tls-cert-file=c --tls-private-key-file=k --service=n/s",
			"give one of the two"},
		{"--aggregated --database=memory: --service=s", `"s" is not the NAMESPACE/NAME`},
		{"--service=n/s", "--service is only for aggregated servers"},
		{"--requestheader-client-ca-file=c",
			"--requestheader-client-ca-file is only for aggregated servers"},
		{"--disable-admission-plugins=NamespaceLifecycle",
			"--disable-admission-plugins is only for aggregated servers"},
		{"--kubeconfig=k --database=memory: --tls-cert-file=c --tls-private-key-file=k " +
			"--disable-admission-plugins=Nonsense", `plugin "Nonsense" is unknown`},
	} {
		var stdout, stderr bytes.Buffer
		if code := Run(t.Context(), append([]string{"serve"}, strings.Fields(test.args)...),
			&stdout, &stderr); code != exitUsage || !strings.Contains(stderr.String(), test.want) {
			t.Errorf("serve %s: code %d, %q; want code %d and %q", test.args, code, stderr.String(),
				exitUsage, test.want)
		}
	}
}
