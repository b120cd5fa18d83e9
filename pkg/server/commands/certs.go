package commands

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"

	"github.com/spf13/cobra"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
)

// certsOptions are what the command certs can be told.
type certsOptions struct {
	dir                string
	namespace, service string
	hosts              []string
	renew              bool
}

func newCertsCommand(p server.Program) *cobra.Command {
	o := &certsOptions{dir: ".", namespace: p.Name + "-system", service: p.Name}
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Make or renew the serving certificate of an aggregated server",
		Long: "Certs writes files into a directory: ca.crt, the authority by which the cluster's " +
			"API server knows the server; tls.crt and tls.key, the serving certificate, which is valid for a year; and ca.key, the authority's private key, which is to be kept secret and is needed for renewal only.\n\n" +
			"Run again, it renews what has come into the last third of its lifetime, and leaves " +
			"the rest alone. A new authority is added to the old one in ca.crt, so that " +
			"certificates of both are trusted while they are exchanged. The server reads a new " +
			"certificate by itself.",
		Example: "  " + p.Name + " certs --dir certs --namespace ci --service pipelines",
		Args:    server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return server.UsageError{Err: err}
			}
			return o.run(cmd.OutOrStdout(), clock.RealClock{})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.dir, "dir", o.dir, "Directory for the files.")
	fs.StringVar(&o.namespace, "namespace", o.namespace,
		"Namespace of the Service that the APIServices name.")
	fs.StringVar(&o.service, "service", o.service, "Name of that Service.")
	fs.StringSliceVar(&o.hosts, "host", o.hosts, "Further names or addresses that the "+
		"certificate is for, under which clients reach the server directly.")
	fs.BoolVar(&o.renew, "renew", o.renew, "Renew the serving certificate now.")
	return cmd
}

func (o *certsOptions) validate() error {
	for flag, name := range map[string]string{"namespace": o.namespace, "service": o.service} {
		if wrong := utilvalidation.IsDNS1123Label(name); len(wrong) > 0 {
			return fmt.Errorf("--%s %q: %s", flag, name, wrong[0])
		}
	}
	for _, host := range o.hosts {
		if wrong := utilvalidation.IsDNS1123Subdomain(host); net.ParseIP(host) == nil &&
			len(wrong) > 0 {
			return fmt.Errorf("--host %q: %s", host, wrong[0])
		}
	}
	if o.dir == "" {
		return errors.New("--dir must name a directory")
	}
	return nil
}

func (o *certsOptions) run(out io.Writer, clock clock.PassiveClock) error {
	file := func(name string) string { return filepath.Join(o.dir, name) }
	if pki.Foreign(file("tls.crt"), file("ca.crt")) {
		return fmt.Errorf("%s was not made by this command, which would replace it: name another "+
			"directory by --dir, or remove it with %s", file("tls.crt"), file("tls.key"))
	}
	authority, fresh, err := pki.EnsureAuthority(file("ca.crt"), file("ca.key"), clock)
	if err != nil {
		return err
	}
	serving := pki.Certificate{
		CertFile: file("tls.crt"), KeyFile: file("tls.key"),
		Template: pki.Service(o.namespace, o.service, o.hosts...),
	}
	renewed := true
	if o.renew {
		err = authority.Issue(serving)
	} else {
		renewed, err = authority.Ensure(serving)
	}
	if err != nil {
		return err
	}
	if fresh {
		fmt.Fprintf(out, "wrote a new authority, %s and %s\n", file("ca.crt"), file("ca.key"))
	}
	if renewed {
		fmt.Fprintf(out, "wrote a new serving certificate for %s, %s and %s\n", serving.DNS[0],
			serving.CertFile, serving.KeyFile)
	}
	certs, err := cert.CertsFromFile(serving.CertFile)
	if err != nil {
		return err
	}
	fmt.Fprintf(out,
		"the serving certificate expires on %s; run this again after %s, and apply the files\n",
		certs[0].NotAfter.Format("2006-01-02"), pki.RenewAt(certs[0]).Format("2006-01-02"))
	return nil
}
