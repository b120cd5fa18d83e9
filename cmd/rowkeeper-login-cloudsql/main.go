// Command rowkeeper-login-cloudsql prints a token by which a user of Google's Cloud SQL logs in
// with IAM. It is a program for the flag --database-login of Rowkeeper:
//
//	--database-login 'rowkeeper-login-cloudsql --user rowkeeper@project.iam'
//
// Who asks is found as Google's own programs find it: from the file that
// GOOGLE_APPLICATION_CREDENTIALS names, from gcloud's files, or from the pod or the machine.
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

	"golang.org/x/oauth2/google"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
	defer cancel()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "rowkeeper-login-cloudsql:", err)
		os.Exit(1)
	}
}

// answer is what --database-login reads. It is written here, and not taken from storage/login, so
// that whoever builds this program needs no module of Rowkeeper.
type answer struct {
	User     string     `json:"user,omitempty"`
	Password string     `json:"password"`
	Expires  *time.Time `json:"expires,omitempty"`
}

// scope lets the token do nothing but log in.
const scope = "https://www.googleapis.com/auth/sqlservice.login"

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("rowkeeper-login-cloudsql", flag.ContinueOnError)
	user := flags.String("user", "", "the user of the database, in place of the URL's")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return errors.New("give no argument")
	}
	credentials, err := google.FindDefaultCredentials(ctx, scope)
	if err != nil {
		return err
	}
	token, err := credentials.TokenSource.Token()
	if err != nil {
		return err
	}
	if token.AccessToken == "" {
		return errors.New("the answer has no token")
	}
	a := answer{User: *user, Password: token.AccessToken}
	if !token.Expiry.IsZero() {
		a.Expires = &token.Expiry
	}
	return json.NewEncoder(stdout).Encode(a)
}
