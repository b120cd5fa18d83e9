//go:build !linux

package sqlite

import (
	"errors"
	"os/exec"
)

func privateMounts(*exec.Cmd) bool { return false }

func mountSmall(string, int) error { return errors.ErrUnsupported }

func mountFile(string, string) error { return errors.ErrUnsupported }
