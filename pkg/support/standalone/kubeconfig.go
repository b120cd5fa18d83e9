package standalone

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
)

// KubeconfigFile is where the administrator's kubeconfig lies.
func (d *Dir) KubeconfigFile() string { return d.Path("kubeconfig") }

// WriteKubeconfig writes the administrator's kubeconfig, with everything in it that a client needs,
// for the server at the URL. Only the owner may read it. If the server has another serving
// certificate than ours, its file is named, and the client trusts it.
func (p *PKI) WriteKubeconfig(server, otherServingCert string) error {
	cluster, user := api.NewCluster(), api.NewAuthInfo()
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
	content, err := clientcmd.Write(*kubeconfig(AdminUser, cluster, user))
	if err != nil {
		return fmt.Errorf("cannot write the kubeconfig: %w", err)
	}
	if err := pki.WriteFile(p.dir.KubeconfigFile(), content, 0o600); err != nil {
		return fmt.Errorf("cannot write the kubeconfig: %w", err)
	}
	return nil
}

// kubeconfig is that of one user of one cluster.
func kubeconfig(name string, cluster *api.Cluster, user *api.AuthInfo) *api.Config {
	config, context := api.NewConfig(), api.NewContext()
	context.Cluster, context.AuthInfo, context.Namespace = "rowkeeper", name, "default"
	config.Clusters[context.Cluster] = cluster
	config.AuthInfos[context.AuthInfo] = user
	config.Contexts["rowkeeper"] = context
	config.CurrentContext = "rowkeeper"
	return config
}

// UserKubeconfig returns a kubeconfig for a user in groups, who signs in by a certificate of the
// directory's authority. The rest is as in the administrator's kubeconfig. It changes nothing in
// the directory, whose server may run meanwhile.
func UserKubeconfig(directory, name string, groups []string, lifetime time.Duration,
	clock clock.PassiveClock) ([]byte, error) {
	dir, admin, err := readAdmin(directory)
	if err != nil {
		return nil, err
	}
	files := NewPKI(dir, Names{}, nil)
	authority, err := pki.ReadAuthority(files.AuthorityFile(), files.authorityKey())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s has no authority: restart the server, which makes one", dir.path)
	} else if err != nil {
		return nil, err
	}
	if end := authority.Cert.NotAfter; clock.Now().Add(lifetime).After(end) {
		return nil, fmt.Errorf("the authority expires on %s: give a shorter --lifetime",
			end.Format(time.DateOnly))
	}
	pair, err := authority.Issue(pki.Client(name, groups...), clock.Now(), lifetime)
	if err != nil {
		return nil, err
	}
	user := api.NewAuthInfo()
	user.ClientCertificateData, user.ClientKeyData, err = pair.PEM()
	if err != nil {
		return nil, err
	}
	return write(name, admin, user)
}

// AccountKubeconfig returns a kubeconfig for a service account, which signs in by a token. The
// directory's server, which must run, makes the token. The rest is as in the administrator's
// kubeconfig.
func AccountKubeconfig(ctx context.Context, directory, namespace, name string,
	lifetime time.Duration) ([]byte, error) {
	dir, admin, err := readAdmin(directory)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.NewDefaultClientConfig(*admin, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("cannot use the administrator's kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot use the administrator's kubeconfig: %w", err)
	}
	made, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: ptr.To(int64(lifetime / time.Second))}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("the server of %s makes no token for %s/%s: %w", dir.path, namespace,
			name, err)
	}
	user := api.NewAuthInfo()
	user.Token = made.Status.Token
	return write(name, admin, user)
}

// readAdmin reads the administrator's kubeconfig.
func readAdmin(directory string) (*Dir, *api.Config, error) {
	path, err := filepath.Abs(directory)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot find the data directory: %w", err)
	}
	dir := &Dir{path: path}
	admin, err := clientcmd.LoadFromFile(dir.KubeconfigFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%s is not the data directory of a server that has run: name it by "+
			"--data-dir, or start the server first", path)
	} else if err != nil {
		return nil, nil, fmt.Errorf("cannot read the administrator's kubeconfig: %w", err)
	}
	if admin.Clusters["rowkeeper"] == nil {
		return nil, nil, fmt.Errorf("%s has no cluster rowkeeper: restart the server, which writes the "+
			"file anew", dir.KubeconfigFile())
	}
	return dir, admin, nil
}

// write returns a user's kubeconfig for the administrator's server.
func write(name string, admin *api.Config, user *api.AuthInfo) ([]byte, error) {
	content, err := clientcmd.Write(*kubeconfig(name, admin.Clusters["rowkeeper"], user))
	if err != nil {
		return nil, fmt.Errorf("cannot write the kubeconfig: %w", err)
	}
	return content, nil
}
