//go:build unix

package sqlite

import (
	"os/exec"
	"syscall"
)

func setUser(cmd *exec.Cmd, id uint32) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
}
