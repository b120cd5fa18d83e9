// Package replica serves the example API in this process, without package server, so that a test
// chooses the storage.
package replica

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/utils/clock"
	netutils "k8s.io/utils/net"

	"github.com/rowkeeper/rowkeeper/pkg/example/apiserver"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/support/standalone"
)

// Run serves until ctx ends. store sets what the objects are stored in.
func Run(ctx context.Context, port int, requestTimeout time.Duration,
	store func(*genericapiserver.Config) error) error {
	dir, err := standalone.OpenDir(".rowkeeper")
	if err != nil {
		return err
	}
	defer dir.Close()
	pki := standalone.NewPKI(dir, standalone.Names{DNS: []string{"localhost"},
		IPs: []net.IP{netutils.ParseIPSloppy("127.0.0.1")}}, clock.RealClock{})
	if _, err := pki.Ensure(); err != nil {
		return err
	}
	serving := genericoptions.NewSecureServingOptions()
	serving.BindPort = port
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	if serving.Listener, err = net.Listen("tcp", address); err != nil {
		return err
	}
	serving.BindAddress = netutils.ParseIPSloppy("127.0.0.1")
	serving.ServerCert.CertKey = genericoptions.CertKey{CertFile: pki.ServingCert(),
		KeyFile: pki.ServingKey()}

	api := apiserver.NewConfig()
	api.Generic.PublicAddress = serving.BindAddress
	api.Generic.RequestTimeout = requestTimeout
	features := genericoptions.NewFeatureOptions()
	features.EnablePriorityAndFairness = false
	if err := errors.Join(store(&api.Generic.Config),
		options.ApplySecureServing(serving, &api.Generic.Config),
		features.ApplyTo(&api.Generic.Config, nil, nil),
		// Nobody but the administrator has a certificate.
		pki.ApplyTo(&api.Generic.Config, "",
			authorizerfactory.NewAlwaysAllowAuthorizer())); err != nil {
		return err
	}
	server, err := api.New()
	if err != nil {
		return err
	}
	if err := pki.WriteKubeconfig("https://"+address, ""); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	return server.PrepareRun().RunWithContext(ctx)
}
