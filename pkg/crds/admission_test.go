package crds

import (
	"errors"
	"testing"

	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// Upstream's resolver gives webhooks of one name what a pod may do, in a pod. No webhook gets it.
func TestWebhooksHaveNoCredentials(t *testing.T) {
	failure := errors.New("no configuration")
	own := func() (*rest.Config, error) {
		return &rest.Config{BearerToken: "secret", BearerTokenFile: "/var/run/token",
			Username: "pod", Password: "secret", UserAgent: "agent",
			Impersonate:     rest.ImpersonationConfig{UserName: "admin"},
			TLSClientConfig: rest.TLSClientConfig{CertFile: "tls.crt", KeyFile: "tls.key"}}, nil
	}
	resolve := own
	resolver := withoutCredentials(&webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: func(string) (*rest.Config, error) { return resolve() },
		ClientConfigForServiceFunc: func(string, string, int) (*rest.Config, error) {
			return resolve()
		},
	})
	for name, ask := range map[string]func() (*rest.Config, error){
		"a URL": func() (*rest.Config, error) {
			return resolver.ClientConfigFor("kubernetes.default.svc:443")
		},
		"a Service": func() (*rest.Config, error) {
			return resolver.ClientConfigForService("kubernetes", "default", 443)
		},
	} {
		resolve = own
		c, err := ask()
		if err != nil {
			t.Fatal(err)
		}
		if c.BearerToken != "" || c.BearerTokenFile != "" || c.Username != "" || c.Password != "" ||
			c.Impersonate.UserName != "" || c.CertFile != "" || c.KeyFile != "" {
			t.Errorf("%s is called with credentials: %#v", name, c)
		}
		if c.UserAgent != "agent" {
			t.Errorf("%s: the agent is %q", name, c.UserAgent)
		}
		resolve = func() (*rest.Config, error) { return nil, failure }
		if _, err := ask(); !errors.Is(err, failure) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
