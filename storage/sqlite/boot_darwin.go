package sqlite

import (
	"sync"

	"golang.org/x/sys/unix"
)

// bootID names the run of the kernel, "" if it does not tell.
var bootID = sync.OnceValue(func() string {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return id
})
