package scenario

import "errors"

var errFence = errors.New("the history has not begun anew")
