package executable

import "syscall"

// endWithParent ends a program with the test that started it, also if the test is killed.
func endWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
