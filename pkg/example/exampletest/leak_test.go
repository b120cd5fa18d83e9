package exampletest

import (
	"testing"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// TestNothingLeaks starts and stops servers, with requests and an open watch, and looks for
// goroutines that are left.
func TestNothingLeaks(t *testing.T) {
	use := func(t *testing.T) {
		for _, database := range []testkit.Database{{}, testkit.Memory} {
			s := Start(t, testkit.Options{Database: database})
			c := pipelines(s.Config)
			create(t, c, "a")
			w, err := c.Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			<-w.ResultChan()
			s.Stop()
			for range w.ResultChan() { // it ends with the server
			}
		}
	}
	// Goroutines that the API machinery starts once for a process, and never ends, are there after
	// the first use.
	t.Run("first", use)
	known := goleak.IgnoreCurrent()
	t.Run("again", use)
	// A read that waited for the watch cache leaves upstream's timer, which ends after 3 s.
	timer := goleak.IgnoreTopFunction(
		"k8s.io/apiserver/pkg/storage/cacher.(*watchCache).waitUntilFreshLocked.func2")
	if err := goleak.Find(known, timer); err != nil {
		t.Error(err)
	}
}
