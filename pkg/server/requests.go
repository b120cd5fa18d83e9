package server

import (
	"errors"
	"time"

	"github.com/spf13/pflag"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// requestOptions bound what clients can ask of the server, and how it stops.
type requestOptions struct {
	externalHost           string
	maxInFlight            int
	maxMutatingInFlight    int
	timeout                time.Duration
	minTimeoutSeconds      int
	shutdownDelay          time.Duration
	shutdownSendRetryAfter bool
	shutdownWatchGrace     time.Duration
	goawayChance           float64
}

func newRequestOptions() requestOptions {
	return requestOptions{
		maxInFlight:         400,
		maxMutatingInFlight: 200,
		timeout:             time.Minute,
		minTimeoutSeconds:   1800,
		shutdownWatchGrace:  10 * time.Second,
	}
}

func (o *requestOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.externalHost, "external-hostname", o.externalHost,
		"The name or address by which clients know the server, if they know it by another one. "+
			"The certificate that the server makes is valid for it.")
	fs.IntVar(&o.maxInFlight, "max-requests-inflight", o.maxInFlight,
		"How many reading requests may be under way at a time. Further ones are answered by 429. "+
			"0 means any number. With priority and fairness, this limit and that of writing "+
			"requests together are for all requests, and further ones wait.")
	fs.IntVar(&o.maxMutatingInFlight, "max-mutating-requests-inflight", o.maxMutatingInFlight,
		"How many writing requests may be under way at a time. Further ones are answered by 429. "+
			"0 means any number.")
	fs.DurationVar(&o.timeout, "request-timeout", o.timeout,
		"How long a request may take, other than a watch.")
	fs.IntVar(&o.minTimeoutSeconds, "min-request-timeout", o.minTimeoutSeconds,
		"How many seconds a watch lasts at least whose client does not say. It ends after a "+
			"random time between this and twice this, so that watches do not come back together.")
	fs.DurationVar(&o.shutdownDelay, "shutdown-delay-duration", o.shutdownDelay,
		"How long the server goes on serving after it was told to stop, while /readyz says that "+
			"it is not ready, so that load balancers can notice.")
	fs.BoolVar(&o.shutdownSendRetryAfter, "shutdown-send-retry-after", o.shutdownSendRetryAfter,
		"Answer new requests by 429 while those under way are finished, instead of refusing "+
			"connections.")
	fs.DurationVar(&o.shutdownWatchGrace, "shutdown-watch-termination-grace-period",
		o.shutdownWatchGrace,
		"How long the watches take to end, some at a time, when the server stops.")
	fs.Float64Var(&o.goawayChance, "goaway-chance", o.goawayChance,
		"The fraction of requests after which an HTTP/2 client is asked to connect anew, so that "+
			"it may find another replica: 0 to 0.02.")
}

func (o *requestOptions) validate() []error {
	var errs []error
	reject := func(wrong bool, text string) {
		if wrong {
			errs = append(errs, errors.New(text))
		}
	}
	reject(o.maxInFlight < 0, "--max-requests-inflight must not be negative")
	reject(o.maxMutatingInFlight < 0, "--max-mutating-requests-inflight must not be negative")
	reject(o.timeout <= 0, "--request-timeout must be greater than 0")
	reject(o.minTimeoutSeconds <= 0, "--min-request-timeout must be greater than 0")
	reject(o.shutdownDelay < 0, "--shutdown-delay-duration must not be negative")
	reject(o.shutdownWatchGrace < 0, "--shutdown-watch-termination-grace-period must not be "+
		"negative")
	reject(o.goawayChance < 0 || o.goawayChance > 0.02,
		"--goaway-chance must be between 0 and 0.02")
	return errs
}

func (o *requestOptions) applyTo(c *genericapiserver.Config) {
	if o.externalHost != "" {
		c.ExternalAddress = o.externalHost
	}
	c.MaxRequestsInFlight = o.maxInFlight
	c.MaxMutatingRequestsInFlight = o.maxMutatingInFlight
	c.RequestTimeout = o.timeout
	c.MinRequestTimeout = o.minTimeoutSeconds
	c.ShutdownDelayDuration = o.shutdownDelay
	c.ShutdownSendRetryAfter = o.shutdownSendRetryAfter
	c.ShutdownWatchTerminationGracePeriod = o.shutdownWatchGrace
	c.GoawayChance = o.goawayChance
}
