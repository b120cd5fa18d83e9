// Command rowkeeper-login-vault prints a user that the database secrets engine of HashiCorp's
// Vault, or of OpenBao, makes for a while. It is a program for the flag --database-login of
// Rowkeeper:
//
//	--database-login 'rowkeeper-login-vault --role rowkeeper'
//
// The environment says where the vault is, and who asks: VAULT_ADDR, VAULT_CACERT, VAULT_NAMESPACE,
// VAULT_TOKEN and all else that the vault's own client reads. With --kubernetes-role the token of
// the pod's service account takes the place of VAULT_TOKEN.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/hashicorp/vault/api"
	"github.com/hashicorp/vault/api/auth/kubernetes"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
	defer cancel()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "rowkeeper-login-vault:", err)
		os.Exit(1)
	}
}

// answer is what --database-login reads. It is written here, and not taken from storage/login, so
// that whoever builds this program needs no module of Rowkeeper.
type answer struct {
	User        string     `json:"user"`
	Password    string     `json:"password"`
	Expires     *time.Time `json:"expires,omitempty"`
	UserExpires bool       `json:"userExpires,omitempty"`
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("rowkeeper-login-vault", flag.ContinueOnError)
	role := flags.String("role", "", "the role of the database secrets engine")
	mount := flags.String("mount", "database", "where the database secrets engine is mounted")
	static := flags.Bool("static", false, "the role is a static one, whose user stays")
	kubernetesRole := flags.String("kubernetes-role", "",
		"the role of the Kubernetes auth method, in place of VAULT_TOKEN")
	kubernetesMount := flags.String("kubernetes-mount", "kubernetes",
		"where the Kubernetes auth method is mounted")
	tokenFile := flags.String("service-account-token",
		"/var/run/secrets/kubernetes.io/serviceaccount/token", "the file with the pod's token")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *role == "" || flags.NArg() > 0 {
		return errors.New("give --role, and no argument")
	}
	began := time.Now()
	client, err := api.NewClient(api.DefaultConfig())
	if err != nil {
		return err
	}
	var ends time.Time
	if *kubernetesRole != "" {
		ends, err = logIn(ctx, client, *kubernetesRole, *kubernetesMount, *tokenFile, began)
	} else {
		ends, err = tokenEnd(ctx, client, began)
	}
	if err != nil {
		return err
	}
	path := *mount + "/creds/" + *role
	if *static {
		path = *mount + "/static-creds/" + *role
	}
	secret, err := client.Logical().ReadWithContext(ctx, path)
	if err != nil {
		return err
	}
	if secret == nil {
		return fmt.Errorf("the vault has nothing at %s", path)
	}
	a := answer{UserExpires: !*static}
	a.User, _ = secret.Data["username"].(string)
	a.Password, _ = secret.Data["password"].(string)
	if a.User == "" || a.Password == "" {
		return fmt.Errorf("the vault names no user and password at %s", path)
	}
	life := time.Duration(secret.LeaseDuration) * time.Second
	if *static {
		// The vault gives the user another password then.
		ttl, _ := secret.Data["ttl"].(json.Number)
		seconds, err := ttl.Int64()
		if err != nil {
			return fmt.Errorf("the vault does not say at %s how long the password lives", path)
		}
		life, ends = time.Duration(seconds)*time.Second, time.Time{}
	}
	if life > 0 && (ends.IsZero() || began.Add(life).Before(ends)) {
		ends = began.Add(life)
	}
	if ends.IsZero() {
		a.UserExpires = false
	} else {
		a.Expires = &ends
	}
	return json.NewEncoder(stdout).Encode(a)
}

// logIn logs in by the pod's token. It returns when the vault's token ends, since the vault removes
// the users that it has made for a token together with the token.
func logIn(ctx context.Context, client *api.Client, role, mount, tokenFile string,
	began time.Time) (time.Time, error) {
	method, err := kubernetes.NewKubernetesAuth(role, kubernetes.WithMountPath(mount),
		kubernetes.WithServiceAccountTokenPath(tokenFile))
	if err != nil {
		return time.Time{}, err
	}
	secret, err := client.Auth().Login(ctx, method)
	if err != nil {
		return time.Time{}, err
	}
	return after(began, secret)
}

// tokenEnd returns when the token of the environment ends.
func tokenEnd(ctx context.Context, client *api.Client, began time.Time) (time.Time, error) {
	if client.Token() == "" {
		return time.Time{}, errors.New("set VAULT_TOKEN, or give --kubernetes-role")
	}
	secret, err := client.Auth().Token().LookupSelfWithContext(ctx)
	if err != nil {
		return time.Time{}, err
	}
	return after(began, secret)
}

// after returns the end of a token, zero if it has none.
func after(began time.Time, secret *api.Secret) (time.Time, error) {
	ttl, err := secret.TokenTTL()
	if err != nil || ttl <= 0 {
		return time.Time{}, err
	}
	return began.Add(ttl), nil
}
