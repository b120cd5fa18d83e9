//go:build !unix

package sqlite

import "os/exec"

// setUser is for root, which other systems than Unix do not have.
func setUser(*exec.Cmd, uint32) {}
