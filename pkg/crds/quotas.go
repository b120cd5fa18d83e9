package crds

import (
	"fmt"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/pkg/crds/internal/builtin"
)

// newQuotas makes what bounds the numbers of objects. It has a client of its own: that of the
// server makes 50 requests a second.
func newQuotas(c *genericapiserver.Config,
	factory informers.SharedInformerFactory) (*builtin.Quotas, error) {
	config := rest.CopyConfig(c.LoopbackClientConfig)
	config.QPS = -1
	client, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for the server itself: %w", err)
	}
	return builtin.NewQuotas(client, factory.Core().V1().ResourceQuotas(), c.DrainedNotify())
}
