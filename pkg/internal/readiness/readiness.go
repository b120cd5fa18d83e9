// Package readiness waits for a server to be ready.
package readiness

import (
	"context"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
)

// Await waits until a server says that it is ready: only then does it know of all its
// resources, those of CustomResourceDefinitions included. A server that cannot be reached, or does
// not let this user ask, is not waited for.
func Await(ctx context.Context, discover discovery.DiscoveryInterface,
	within time.Duration) error {
	var last error
	// It asks less often than a client may by default. Else the client's own limit would make it
	// wait, and fail at the end with an error of its own.
	err := wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, within, true,
		func(ctx context.Context) (bool, error) {
			var code int
			err := discover.RESTClient().Get().AbsPath("/readyz").Do(ctx).StatusCode(&code).Error()
			switch {
			case err == nil, apierrors.IsForbidden(err), apierrors.IsNotFound(err):
				return true, nil
			case code < http.StatusInternalServerError:
				return false, err
			}
			last = err
			return false, nil
		})
	if err != nil && ctx.Err() == nil && wait.Interrupted(err) {
		return fmt.Errorf("the server is not ready, and may not know of all its resources yet: "+
			"wait until its /readyz says ok (%w)", last)
	}
	return err
}
