package accounts

import (
	"net/http"
	"net/url"

	"github.com/emicklei/go-restful/v3"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/routes"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// Publish makes a server tell others by which keys they can check tokens, as OpenID Connect has it.
// The group system:serviceaccounts may ask, by a default role. If the first issuer is not an URL of
// HTTPS nothing is published: nobody could ask for it by that name.
func (t *Tokens) Publish(server *genericapiserver.GenericAPIServer) {
	if issuer, err := url.Parse(t.issuers[0]); err != nil || issuer.Scheme != "https" {
		klog.InfoS("The keys of service accounts are not published, since the issuer is not an "+
			"URL of HTTPS", "issuer", t.issuers[0])
		return
	}
	p := provider{t, server.ExternalAddress}
	container := server.Handler.GoRestfulContainer
	routes.NewOpenIDMetadataServer(p).Install(container)
	for _, service := range container.RegisteredWebServices() {
		switch service.RootPath() {
		case serviceaccount.OpenIDConfigPath, serviceaccount.JWKSPath:
			service.Filter(p.await)
		}
	}
}

// provider makes what is published from the keys that are known when it is asked for.
type provider struct {
	*Tokens
	address string // of the server, for clients
}

func (p provider) current() (serviceaccount.OpenIDMetadataProvider, error) {
	if err := p.Check(nil); err != nil {
		return nil, err
	}
	return serviceaccount.NewOpenIDMetadataProvider(p.issuers[0], "", p.address, p.Tokens)
}

// await refuses requests before the keys are known.
func (p provider) await(r *restful.Request, w *restful.Response, next *restful.FilterChain) {
	if _, err := p.current(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	next.ProcessFilter(r, w)
}

func (p provider) GetConfigJSON() ([]byte, int) {
	current, err := p.current()
	if err != nil {
		return nil, 0
	}
	return current.GetConfigJSON()
}

func (p provider) GetKeysetJSON() ([]byte, int) {
	current, err := p.current()
	if err != nil {
		return nil, 0
	}
	return current.GetKeysetJSON()
}
