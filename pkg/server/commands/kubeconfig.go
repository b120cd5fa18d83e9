package commands

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
	"github.com/rowkeeper/rowkeeper/pkg/support/standalone"
)

// kubeconfigOptions are what the command kubeconfig can be told.
type kubeconfigOptions struct {
	dir, user, output string
	account           string // a service account, in place of a user
	groups            []string
	lifetime          time.Duration
	force             bool
}

func newKubeconfigCommand(p server.Program) *cobra.Command {
	o := &kubeconfigOptions{dir: "." + p.Name, lifetime: pki.CertificateLifetime}
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Make a kubeconfig for a user",
		Long: "Kubeconfig prints a kubeconfig with a certificate by which a user signs in to a " +
			"server that is not aggregated. The certificate names the user and the groups. The " +
			"server's authority signs it, from its data directory; the server may run meanwhile.\n\n" +
			"Users may find out what is served, who they are and what they may do. The members " +
			"of the group system:masters may do everything.\n\n" +
			"A certificate cannot be taken back. It is good until its lifetime ends.\n\n" +
			"With --service-account, the kubeconfig has a token of a service account. The server, " +
			"which must run with CustomResourceDefinitions, makes it. The token is good until its " +
			"lifetime ends, or the account is deleted.",
		Example: "  " + p.Name + " kubeconfig --user jane --group dev --output jane.kubeconfig\n" +
			"  " + p.Name + " kubeconfig --service-account default/greeter --output greeter.kubeconfig",
		Args: server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return server.UsageError{Err: err}
			}
			content, err := o.make(cmd.Context())
			if err != nil {
				return err
			}
			if o.output != "" {
				return writePrivate(o.output, o.force, content)
			}
			_, err = cmd.OutOrStdout().Write(content)
			return err
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.dir, "data-dir", o.dir, "The server's data directory.")
	fs.StringVar(&o.output, "output", o.output, "File to write, which only its owner can read. "+
		"Default: the kubeconfig, with its private key or token, is printed.")
	fs.BoolVar(&o.force, "force", o.force, "Replace the file of --output if it is there.")
	fs.StringVar(&o.user, "user", o.user, "Name of the user.")
	fs.StringArrayVar(&o.groups, "group", o.groups, "A group of the user. Repeat it for more.")
	fs.StringVar(&o.account, "service-account", o.account,
		"NAMESPACE/NAME of the service account, in place of --user.")
	fs.DurationVar(&o.lifetime, "lifetime", o.lifetime,
		"How long the certificate or the token is valid. A token ends after a year at most.")
	return cmd
}

func (o *kubeconfigOptions) make(ctx context.Context) ([]byte, error) {
	if o.account == "" {
		return standalone.UserKubeconfig(o.dir, o.user, o.groups, o.lifetime, clock.RealClock{})
	}
	namespace, name, _ := strings.Cut(o.account, "/")
	return standalone.AccountKubeconfig(ctx, o.dir, namespace, name, o.lifetime)
}

// writePrivate writes a file that only its owner can read. It replaces no file that has a content,
// such as the kubeconfig of other servers, without force, and nothing that is no file.
func writePrivate(name string, force bool, content []byte) error {
	switch st, err := os.Stat(name); {
	case err != nil: // it is not there, or what is wrong shows when it is written
	case !st.Mode().IsRegular():
		return fmt.Errorf("%s is no file that a kubeconfig could replace: name another one, or "+
			"leave --output out for the standard output", name)
	case st.Size() > 0 && !force:
		return fmt.Errorf("%s exists: name another file, or replace it with --force", name)
	}
	file, err := os.CreateTemp(filepath.Dir(name), ".kubeconfig-") // with mode 0600
	if err != nil {
		return fmt.Errorf("cannot write the kubeconfig: %w", err)
	}
	defer os.Remove(file.Name())
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), name)
	}
	if err != nil {
		return fmt.Errorf("cannot write the kubeconfig: %w", err)
	}
	return nil
}

func (o *kubeconfigOptions) validate() error {
	namespace, name, _ := strings.Cut(o.account, "/")
	switch {
	case o.account != "" && (o.user != "" || len(o.groups) > 0):
		return errors.New("--service-account excludes --user and --group")
	case o.account != "" && (namespace == "" || name == "" || strings.Contains(name, "/")):
		return fmt.Errorf("--service-account %q is not a NAMESPACE/NAME", o.account)
	case o.account == "" && o.user == "":
		return errors.New("--user must name a user")
	case slices.Contains(o.groups, ""):
		return errors.New("--group must name a group")
	case o.dir == "":
		return errors.New("--data-dir must name a directory")
	case o.lifetime <= 0:
		return errors.New("--lifetime must be more than 0")
	}
	return nil
}
