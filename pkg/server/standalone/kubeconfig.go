package standalone

import (
	"fmt"
	"os"
	"slices"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/rowkeeper/rowkeeper/pkg/server/pki"
)

// KubeconfigFile is where the administrator's kubeconfig lies.
func (d *Dir) KubeconfigFile() string { return d.Path("kubeconfig") }

// WriteKubeconfig writes the administrator's kubeconfig, with everything in it that a client needs,
// for the server at the URL. Only the owner may read it. If the server has another serving
// certificate than ours, its file is named, and the client trusts it.
func (p *PKI) WriteKubeconfig(server, otherServingCert string) error {
	config := api.NewConfig()
	cluster, user, context := api.NewCluster(), api.NewAuthInfo(), api.NewContext()
	for _, part := range []struct {
		into *[]byte
		file string
	}{
		{&cluster.CertificateAuthorityData, p.AuthorityFile()},
		{&user.ClientCertificateData, p.AdminCert()},
		{&user.ClientKeyData, p.AdminKey()},
	} {
		content, err := os.ReadFile(part.file)
		if err != nil {
			return fmt.Errorf("cannot write the kubeconfig: %w", err)
		}
		*part.into = content
	}
	if otherServingCert != "" {
		content, err := os.ReadFile(otherServingCert)
		if err != nil {
			return fmt.Errorf("cannot write the kubeconfig: %w", err)
		}
		cluster.CertificateAuthorityData = slices.Concat(cluster.CertificateAuthorityData,
			[]byte("\n"), content)
	}
	cluster.Server = server
	context.Cluster, context.AuthInfo, context.Namespace = "rowkeeper", AdminUser, "default"
	config.Clusters[context.Cluster] = cluster
	config.AuthInfos[context.AuthInfo] = user
	config.Contexts["rowkeeper"] = context
	config.CurrentContext = "rowkeeper"

	content, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("cannot write the kubeconfig: %w", err)
	}
	if err := pki.WriteFile(p.dir.KubeconfigFile(), content, 0o600); err != nil {
		return fmt.Errorf("cannot write the kubeconfig: %w", err)
	}
	return nil
}
