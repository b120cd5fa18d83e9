package sqlite

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// privateMounts gives the command a name space of mounts of its own.
func privateMounts(cmd *exec.Cmd) bool {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	return true
}

func mountSmall(dir string, bytes int) error {
	return syscall.Mount("rowkeeper", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes))
}

// mountFile gives a file that is there the content of another one.
func mountFile(file, at string) error {
	return syscall.Mount(file, at, "", syscall.MS_BIND, "")
}
