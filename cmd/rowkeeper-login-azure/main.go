// Command rowkeeper-login-azure prints a token by which a user of Azure Database for PostgreSQL or
// MySQL logs in with Microsoft Entra ID. It is a program for the flag --database-login of
// Rowkeeper:
//
//	--database-login 'rowkeeper-login-azure --user rowkeeper'
//
// Who asks is found as Azure's own programs find it: from the environment, from the workload
// identity of the pod, from the managed identity of the machine, or from az login.
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

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
	defer cancel()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "rowkeeper-login-azure:", err)
		os.Exit(1)
	}
}

// answer is what --database-login reads. It is written here, and not taken from storage/login, so
// that whoever builds this program needs no module of Rowkeeper.
type answer struct {
	User     string    `json:"user,omitempty"`
	Password string    `json:"password"`
	Expires  time.Time `json:"expires"`
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("rowkeeper-login-azure", flag.ContinueOnError)
	user := flags.String("user", "", "the user of the database, in place of the URL's")
	scope := flags.String("scope", "https://ossrdbms-aad.database.windows.net/.default",
		"what the token is for; national clouds have another one")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return errors.New("give no argument")
	}
	credential, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return err
	}
	token, err := credential.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{*scope}})
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(answer{User: *user, Password: token.Token,
		Expires: token.ExpiresOn})
}
