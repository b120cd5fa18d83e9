//go:build !linux

package executable

import "syscall"

// endWithParent does nothing, since only Linux tells a program that its parent has ended: what a
// test has started that is killed has to be ended by hand.
func endWithParent(*syscall.SysProcAttr) {}
