package sqlite

import (
	"os"
	"strings"
	"sync"
)

// bootID names the run of the kernel, "" if it does not tell. Containers have that of their host.
var bootID = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
})
