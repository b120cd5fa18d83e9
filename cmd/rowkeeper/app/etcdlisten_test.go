package app

import (
	"net"
	"syscall"
	"testing"
)

// failing is a listener that runs out of files now and then.
type failing struct {
	net.Listener
	errs []error
}

func (f *failing) Accept() (net.Conn, error) {
	err := f.errs[0]
	f.errs = f.errs[1:]
	return nil, &net.OpError{Op: "accept", Err: err}
}

// TestAcceptGoesOn: a connection that cannot be accepted does not keep others from being accepted.
func TestAcceptGoesOn(t *testing.T) {
	l := &failing{errs: []error{syscall.EMFILE, syscall.ECONNABORTED, net.ErrClosed}}
	newSplitter(l, nil).run()
	if len(l.errs) > 0 {
		t.Errorf("nothing is accepted after an error; there are %v left", l.errs)
	}
}
