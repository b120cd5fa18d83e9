package garbagecollector

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// An election says nothing of a database that is away, since the storage does. All else is said.
func TestElectionLog(t *testing.T) {
	var said []string
	log := funcr.New(func(_, args string) { said = append(said, args) }, funcr.Options{})
	log = log.WithSink(electionLog{log.GetSink()})
	for _, err := range []error{
		apierrors.NewServiceUnavailable("nothing answers"),
		fmt.Errorf("read: %w", context.Canceled),
		apierrors.NewTimeoutError("it is not known whether this was written", 1),
		fmt.Errorf("read: %w", context.DeadlineExceeded),
	} {
		log.Error(err, "Failed to update lock")
	}
	log.Info("Successfully acquired lease")
	want := []string{
		`"msg"="Failed to update lock" "error"="Timeout: it is not known whether this was written"`,
		`"msg"="Failed to update lock" "error"="read: context deadline exceeded"`,
		`"level"=0 "msg"="Successfully acquired lease"`}
	if !slices.Equal(said, want) {
		t.Errorf("said %q, want %q", said, want)
	}
}
