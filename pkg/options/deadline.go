package options

import (
	"context"
	"errors"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// answerWithin is how long before a request's time is over the storage gives up, at most: a tenth
// of a shorter time.
//
// The apiserver cuts an answer off that has begun when the time is over, and the client learns
// nothing. While the database is away that is just when the storage's answer, which says so, would
// begin.
const answerWithin = 500 * time.Millisecond

// leaveTimeToAnswer makes handlers see deadlines that are a little earlier than those of the
// filters around them.
func leaveTimeToAnswer(c *genericapiserver.Config) {
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		return build(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if deadline, ok := r.Context().Deadline(); ok {
				ctx, cancel := context.WithDeadline(r.Context(),
					deadline.Add(-min(answerWithin, time.Until(deadline)/10)))
				defer cancel()
				w = responsewriter.WrapForHTTP1Or2(&unheard{w, r.Context()})
				r = r.WithContext(ctx)
			}
			handler.ServeHTTP(w, r)
		}), c)
	}
}

// unheard drops what a handler writes after its client has left. The filter that ends such a
// request refuses to take it, and upstream would log three errors about that for each client that
// leaves.
type unheard struct {
	http.ResponseWriter
	request context.Context
}

func (w *unheard) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *unheard) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	if errors.Is(err, http.ErrHandlerTimeout) && errors.Is(w.request.Err(), context.Canceled) {
		return len(p), nil
	}
	return n, err
}
