package login_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/login"
)

// A program that links the library of its cloud needs no helper. What it gets from there is kept
// until shortly before it ends.
func ExampleKeep() {
	tokens := 0
	token := func(context.Context) (login.Credentials, error) {
		tokens++
		return login.Credentials{User: "rowkeeper", Password: fmt.Sprint("token-", tokens),
			Expires: time.Now().Add(15 * time.Minute)}, nil
	}
	// This is the Login of a storage.Config.
	f := login.Keep(token, nil)
	for range 3 { // for each connection
		c, err := f(context.Background())
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(c.User, c.Password)
	}
	// Output:
	// rowkeeper token-1
	// rowkeeper token-1
	// rowkeeper token-1
}
