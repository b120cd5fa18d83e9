package definitions

import (
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Services says where the Services are that webhooks name, of admission and of conversion: a
// NAMESPACE/NAME leads to a HOST:PORT, whatever the port of the Service is. Nobody runs Services
// here. The webhook's certificate must be for the Service, as in a cluster: for NAME.NAMESPACE.svc.
type Services map[string]string

// ownService is the name of a cluster's API server in the cluster.
const ownService = "default/kubernetes"

// Validate returns what is wrong with each entry.
func (s Services) Validate() (errs []error) {
	for _, service := range slices.Sorted(maps.Keys(s)) {
		if service == ownService {
			errs = append(errs, fmt.Errorf("the Service %s is an API server itself in a cluster, "+
				"and cannot be a webhook's: give the webhook's Service another name", service))
		}
		namespace, name, _ := strings.Cut(service, "/")
		if len(validation.IsDNS1123Label(namespace)) > 0 ||
			len(validation.IsDNS1035Label(name)) > 0 {
			errs = append(errs, fmt.Errorf("%q is not the NAMESPACE/NAME of a Service", service))
		}
		host, port, err := net.SplitHostPort(s[service])
		if n, numeric := strconv.ParseUint(port, 10, 16); err != nil || host == "" ||
			numeric != nil || n == 0 {
			errs = append(errs, fmt.Errorf("the Service %s is at %q, which is not a HOST:PORT",
				service, s[service]))
		}
	}
	return errs
}

// ResolveEndpoint implements webhook.ServiceResolver.
func (s Services) ResolveEndpoint(namespace, name string, _ int32) (*url.URL, error) {
	address, ok := s[namespace+"/"+name]
	if !ok {
		return nil, fmt.Errorf("the server was not told where the Service %s/%s is", namespace,
			name)
	}
	return &url.URL{Scheme: "https", Host: address}, nil
}
