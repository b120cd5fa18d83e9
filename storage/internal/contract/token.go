package contract

import (
	"crypto/rand"
	"time"

	"github.com/cenkalti/backoff/v5"
)

func RetryPolicy() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = 10 * time.Millisecond
	b.MaxInterval = time.Second
	return b
}

func NewToken() (t Token) {
	rand.Read(t[:]) // never fails
	return t
}
