// Command rowkeeper-login-rds prints a token by which a user of Amazon RDS or Aurora logs in with
// IAM. It is a program for the flag --database-login of Rowkeeper:
//
//	--database-login 'rowkeeper-login-rds --endpoint db.abc.eu-central-1.rds.amazonaws.com:5432 --user rowkeeper'
//
// Who asks is found as AWS's own programs find it: from the environment, from the files of the
// command line, or from the pod or the machine.
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

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/rds/auth"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
	defer cancel()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "rowkeeper-login-rds:", err)
		os.Exit(1)
	}
}

// answer is what --database-login reads. It is written here, and not taken from storage/login, so
// that whoever builds this program needs no module of Rowkeeper.
type answer struct {
	User     string    `json:"user"`
	Password string    `json:"password"`
	Expires  time.Time `json:"expires"`
}

// tokenLife is how long RDS takes a token.
const tokenLife = 15 * time.Minute

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("rowkeeper-login-rds", flag.ContinueOnError)
	endpoint := flags.String("endpoint", "", "the host and the port of the database, as HOST:PORT")
	user := flags.String("user", "", "the user of the database")
	region := flags.String("region", "", "the region of the database, in place of AWS_REGION")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *endpoint == "" || *user == "" || flags.NArg() > 0 {
		return errors.New("give --endpoint and --user, and no argument")
	}
	began := time.Now()
	var options []func(*config.LoadOptions) error
	if *region != "" {
		options = append(options, config.WithRegion(*region))
	}
	c, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return err
	}
	if c.Region == "" {
		return errors.New("give --region, or set AWS_REGION")
	}
	token, err := auth.BuildAuthToken(ctx, *endpoint, c.Region, *user, c.Credentials)
	if err != nil {
		return err
	}
	a := answer{User: *user, Password: token, Expires: began.Add(tokenLife)}
	// The token ends together with what has signed it.
	signer, err := c.Credentials.Retrieve(ctx)
	if err != nil {
		return err
	}
	if signer.CanExpire && signer.Expires.Before(a.Expires) {
		a.Expires = signer.Expires
		// The library may name an end some minutes before the real one.
		if soon := began.Add(time.Minute); a.Expires.Before(soon) {
			a.Expires = soon
		}
	}
	return json.NewEncoder(stdout).Encode(a)
}
